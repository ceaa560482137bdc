"""Parts: fragments that are larger than one message of their carrier, put together again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from rlexp.transport.envelope import InvalidMessageError, Message

_Key = tuple[int, int, int]


class Parts:
    """The parts of fragments that are not whole yet; owned by the trainer's inbox."""

    def __init__(self, max_bytes: int) -> None:
        """Keep ``max_bytes`` of parts at most: beyond that, the fragment that was begun first is forgotten."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._begun: OrderedDict[_Key, dict[int, Message]] = OrderedDict()

    def add(self, message: Message) -> Message | None:
        """Return the whole fragment that ``message`` completes, with ``num_parts`` 1; None while others are missing.

        Raises InvalidMessageError where it does not belong to the other parts of its number.
        """
        header = message.header
        if header.num_parts == 1:
            return message
        key = (header.seat, header.epoch, header.number)
        parts = self._begun.setdefault(key, {})
        if parts and replace(next(iter(parts.values())).header, part=0) != replace(header, part=0):
            raise InvalidMessageError("a part does not belong to the others of its number")
        if header.part not in parts:
            parts[header.part] = message
            self._num_bytes += len(message.block)
        if len(parts) == header.num_parts:
            self._forget(key)
            block = b"".join(parts[part].block for part in range(header.num_parts))
            return Message(replace(header, part=0, num_parts=1), block)
        while self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._begun)))
        return None

    def _forget(self, key: _Key) -> None:
        self._num_bytes -= sum(len(part.block) for part in self._begun.pop(key).values())
