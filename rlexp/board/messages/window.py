"""The sliding window: both ends count, so the queue between them may lose, repeat and reorder. No clock, no I/O.

For each seat and epoch, a trainer publishes how far it has received without a gap (*got*). An actor sends at most
``size`` fragments beyond that, keeps unconfirmed ones, and sends them again if there is no progress.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

NOTHING_GOT: Final = -1
"""The value of *got* before the first fragment, as fragments are numbered from 0."""


STANDSTILL_S: Final = 2.0
"""Seconds without progress after which fragments are first sent again; doubled each further time."""
LONGEST_STANDSTILL_S: Final = 30.0
"""The longest such time, used at once if messages wait in the queue: the trainer lacks room, and none is lost."""
_ROUND_TRIPS: Final = 4


class SendWindow:
    """Fragments that an actor sent and the trainer has not stored; owned by its outbox, new for each seat and epoch."""

    def __init__(self, size: int) -> None:
        """Allow at most ``size`` fragments on their way."""
        self.size = size
        self.got = NOTHING_GOT
        self.next_number = 0
        self.num_sent = 0
        """Fragments that were sent for the first time."""
        self.num_sent_again = 0
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
        """Return the messages to send now, repeated ones first.

        ``now_s`` is any monotonic clock. ``is_queued``: messages are known to wait in the task's queue.
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
        """Let the next ``take`` return all that is not stored, as taken messages may not have left.

        The wait before later repeats does not change: these may be lost too, before the receiver is back.
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
        """Forget all fragments that are not stored; return their number."""
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
    """Fragments of one seat and epoch that have arrived; owned by the trainer's inbox."""

    def __init__(self, size: int) -> None:
        """Admit at most ``2 * size`` fragments beyond ``got``."""
        self.size = size
        self.got = NOTHING_GOT
        """The highest number up to which all have arrived."""
        self._beyond_gap: set[int] = set()

    def admit(self, number: int) -> bool:
        """Return whether fragment ``number`` is new and within the window, and note its arrival."""
        if not self.got < number <= self.got + 2 * self.size or number in self._beyond_gap:
            return False
        self._beyond_gap.add(number)
        self._close_gap()
        return True

    def state(self) -> dict[str, Any]:
        return {"got": self.got, "settled": sorted(self._beyond_gap)}

    def load(self, state: Mapping[str, Any]) -> None:
        settled: Iterable[int] = state["settled"]
        self.got = int(state["got"])
        self._beyond_gap = {int(number) for number in settled}

    def advance(self, got: int) -> int:
        """Assume that all up to ``got`` have arrived; return how many of them were not known to."""
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
