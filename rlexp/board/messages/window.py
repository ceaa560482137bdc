"""The sliding window: both ends count, so that whatever lies between may lose, repeat and reorder. No clock, no I/O.

A trainer writes for each seat and epoch how far it has received without a gap (*got*); an actor sends at most
``size`` fragments beyond that, keeps what is not covered, and sends it again where nothing moves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

NOTHING_GOT: Final = -1
"""The number of fragments received without a gap, before the first one: they are numbered from 0."""


STANDSTILL_S: Final = 2.0
"""Seconds without progress after which fragments are sent again, at first; each further time it is twice as long."""
LONGEST_STANDSTILL_S: Final = 30.0
"""That time at most, and always where messages wait in the queue: the trainer then lacks room, and nothing is lost."""
_ROUND_TRIPS: Final = 4


class SendWindow:
    """What an actor has sent and the trainer has not stored yet; owned by its outbox, new for each seat and epoch."""

    def __init__(self, size: int) -> None:
        """Let at most ``size`` fragments be on their way."""
        self.size = size
        self.got = NOTHING_GOT
        self.next_number = 0
        """The number of the next fragment that is put."""
        self.num_sent = 0
        """Fragments that were sent for the first time."""
        self.num_sent_again = 0
        """Fragments that were sent again."""
        self._kept: OrderedDict[int, tuple[bytes, ...]] = OrderedDict()
        self._next_to_send = 0
        self._moved_at_s = 0.0
        self._standstill_s = STANDSTILL_S
        self._must_repeat = False

    @property
    def num_kept(self) -> int:
        """Fragments that the trainer has not stored yet."""
        return len(self._kept)

    @property
    def has_room(self) -> bool:
        """Whether another fragment may be put."""
        return self.num_kept < self.size

    def put(self, messages: Sequence[bytes]) -> int:
        """Take the messages of fragment ``next_number``, one for each part, and return its number."""
        if not self.has_room:
            raise ValueError(f"the window of {self.size} fragments is full")
        number = self.next_number
        self._kept[number] = tuple(messages)
        self.next_number += 1
        return number

    def take(self, now_s: float, round_trip_s: float = 0.0, *, is_queued: bool = False) -> list[bytes]:
        """Return the messages to be sent now, those that are due again first.

        ``now_s`` is any clock that only goes on. ``is_queued``: messages are known to wait in the task's queue.
        """
        start = self._next_to_send
        if self._is_due_again(now_s, round_trip_s, is_queued):
            start = self.got + 1
            longer_s = min(2 * self._standstill_s, LONGEST_STANDSTILL_S)
            self._standstill_s = STANDSTILL_S if self._must_repeat else longer_s
            self._moved_at_s, self._must_repeat = now_s, False
        elif start == self.got + 1:
            self._moved_at_s = now_s
        self.num_sent_again += self._next_to_send - start
        self.num_sent += self.next_number - self._next_to_send
        self._next_to_send = self.next_number
        return [message for number in range(start, self.next_number) for message in self._kept[number]]

    def repeat(self) -> None:
        """Let the next call of ``take`` return all that is not stored: what was taken may not have left.

        That says nothing of how long to wait for what is sent then: it may be lost too, before its receiver is back.
        """
        self._must_repeat = True

    def acknowledge(self, got: int, now_s: float) -> None:
        """Forget the fragments up to ``got``, which the trainer has stored; an older number changes nothing."""
        got = min(got, self._next_to_send - 1)
        if got <= self.got:
            return
        for number in range(self.got + 1, got + 1):
            self._kept.pop(number, None)
        self.got = got
        self._moved_at_s = now_s
        self._standstill_s = STANDSTILL_S

    def clear(self) -> int:
        """Forget everything that is not stored; return how many fragments these are."""
        count = len(self._kept)
        self._kept.clear()
        self._next_to_send = self.next_number
        self.got = self.next_number - 1
        return count

    def _is_due_again(self, now_s: float, round_trip_s: float, is_queued: bool) -> bool:
        if self._next_to_send == self.got + 1:
            return False
        if self._must_repeat:
            return True
        patience_s = LONGEST_STANDSTILL_S if is_queued else max(self._standstill_s, _ROUND_TRIPS * round_trip_s)
        return now_s - self._moved_at_s >= patience_s


class ReceiveWindow:
    """Which fragments of one seat and epoch have come; owned by the trainer's inbox."""

    def __init__(self, size: int) -> None:
        """Admit at most ``2 * size`` fragments beyond ``got``."""
        self.size = size
        self.got = NOTHING_GOT
        """The highest number up to which all have come."""
        self._beyond_gap: set[int] = set()

    def admit(self, number: int) -> bool:
        """Return whether fragment ``number`` is new and within the window; from then on it has come."""
        if not self.got < number <= self.got + 2 * self.size or number in self._beyond_gap:
            return False
        self._beyond_gap.add(number)
        self._close_gap()
        return True

    def state(self) -> dict[str, Any]:
        """Return which fragments have come."""
        return {"got": self.got, "settled": sorted(self._beyond_gap)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        settled: Iterable[int] = state["settled"]
        self.got = int(state["got"])
        self._beyond_gap = {int(number) for number in settled}

    def advance(self, got: int) -> int:
        """Take it that all up to ``got`` have come; return how many of them were not known to."""
        if got <= self.got:
            return 0
        num_skipped = got - self.got - sum(number <= got for number in self._beyond_gap)
        self.got = got
        self._beyond_gap = {number for number in self._beyond_gap if number > got}
        self._close_gap()
        return num_skipped

    def _close_gap(self) -> None:
        while self.got + 1 in self._beyond_gap:
            self.got += 1
            self._beyond_gap.remove(self.got)
