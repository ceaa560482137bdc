"""SeatWatch: who has joined, who has left, and whose lease has run out, by what the board answers."""

from __future__ import annotations

from typing import Final

from rlexp.joined_actors.board_state import BoardState
from rlexp.transport.board import SeatHolder

RELEASED_EARLIER_S: Final = 0.5
"""A lease that ends so much before its time was given back."""


class SeatWatch:
    """Compares each answer of the board with the one before; owned by one source."""

    def __init__(self) -> None:
        self.num_lost = 0
        """Leases that ran out."""
        self._holders: dict[int, SeatHolder] = {}
        self._events: list[str] = []
        self._num_beats = 0
        self._answered_s = 0.0

    @property
    def num_actors(self) -> int:
        """Seats that were held when the board answered last."""
        return sum(holder.left_s > 0 for holder in self._holders.values())

    def learn(self, state: BoardState) -> None:
        """Take the newest answer, unless it was taken before."""
        if state.num_beats == self._num_beats:
            return
        elapsed_s = state.answered_s - self._answered_s
        for holder in state.seats:
            self._compare(self._holders.get(holder.index), holder, elapsed_s)
        self._holders = {holder.index: holder for holder in state.seats}
        self._num_beats, self._answered_s = state.num_beats, state.answered_s

    def drain_events(self) -> list[str]:
        """Return what happened since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def _compare(self, before: SeatHolder | None, now: SeatHolder, elapsed_s: float) -> None:
        was_held = before is not None and before.left_s > 0
        same = before is not None and (before.epoch, before.member) == (now.epoch, now.member)
        if was_held and before is not None and not (same and now.left_s > 0):
            self._left(before, elapsed_s)
        if now.left_s > 0 and not (same and was_held):
            self._events.append(f"actor {now.member} has joined: seat {now.index}")

    def _left(self, holder: SeatHolder, elapsed_s: float) -> None:
        if holder.left_s - elapsed_s > RELEASED_EARLIER_S:
            self._events.append(f"actor {holder.member} has left seat {holder.index}")
            return
        self.num_lost += 1
        self._events.append(f"actor {holder.member} is lost: no beat from seat {holder.index} within its lease")
