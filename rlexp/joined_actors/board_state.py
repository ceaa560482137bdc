"""What a trainer has learned from its board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlexp.transport.board import SeatHolder, TrainerBeat


@dataclass(frozen=True)
class BoardState:
    """Replaced as a whole with each answer, so that other threads can read it."""

    num_beats: int = 0
    """Answers of the board."""
    seats: tuple[SeatHolder, ...] = ()
    answered_s: float = 0.0
    """When the last answer came, by the thread's clock."""
    num_queued: int | None = None
    is_connected: bool = False
    num_lost_connections: int = 0
    received: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By seat and epoch: how far trainers before this one had received fragments without a gap."""

    def after(self, answer: TrainerBeat, now_s: float) -> BoardState:
        """Return the state once the board has answered."""
        return replace(
            self,
            num_beats=self.num_beats + 1,
            seats=_merged(self.seats, answer.seats),
            answered_s=now_s,
            num_queued=answer.num_queued,
            is_connected=True,
        )

    def disconnected(self) -> BoardState:
        """Return the state once the board is away, or has lost its data."""
        lost = self.num_lost_connections + self.is_connected
        return replace(self, num_queued=None, is_connected=False, num_lost_connections=lost)


def _merged(known: tuple[SeatHolder, ...], answered: tuple[SeatHolder, ...]) -> tuple[SeatHolder, ...]:
    """Return the newest holder of each seat: a board that lost its data knows only those that beat since."""
    holders = {holder.index: holder for holder in known}
    for holder in answered:
        before = holders.get(holder.index)
        if before is None or holder.epoch >= before.epoch:
            holders[holder.index] = holder
    return tuple(holders[index] for index in sorted(holders))
