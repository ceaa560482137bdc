"""Strikes: what was refused of whom, and which actors are banned from a task for it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final

from rlexp.transport.board import actor_of
from rlexp.transport.envelope import Header

KEPT_REFUSALS: Final = 20


class Strikes:
    """Counts invalid fragments by actor, whatever seats it has had; owned by the inbox."""

    def __init__(self, max_strikes: int, refused_actors: Iterable[str] = ()) -> None:
        """Ban an actor after ``max_strikes`` of them, and ``refused_actors`` from the beginning."""
        self.num_refused = 0
        self.last_refusal = ""
        """Why a message was refused last."""
        self._max_strikes = max_strikes
        self._strikes: Counter[str] = Counter()
        self._banned = dict.fromkeys(refused_actors)
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_REFUSALS)
        self._events: list[str] = []

    @property
    def banned(self) -> tuple[str, ...]:
        """The ids of the actors that are banned, in the order in which they were; without tokens, their members."""
        return tuple(self._banned)

    def is_banned(self, member: str) -> bool:
        """Return whether nothing more is taken of a member."""
        return actor_of(member) in self._banned

    def ban(self, actors: Iterable[str]) -> None:
        """Ban ``actors`` too: those of an earlier process of the same task."""
        self._banned |= dict.fromkeys(actors)

    def refuse(self, why: str, header: Header | None = None) -> None:
        """Count a message for which nobody is blamed: anyone may have sent it."""
        self.num_refused += 1
        self.last_refusal = why if header is None else f"seat {header.seat}: {why}"
        self._kept.append({"why": why, **({} if header is None else _said(header))})

    def strike(self, member: str, header: Header, why: str) -> None:
        """Count an invalid fragment that ``member`` has sent; ban it where it was one too many."""
        self.refuse(why, header)
        actor = actor_of(member)
        self._strikes[actor] += 1
        if self._strikes[actor] == self._max_strikes and actor not in self._banned:
            self._banned[actor] = None
            self._events.append(
                f"actor {actor} is banned after {self._max_strikes} invalid fragments; the last one: "
                f"{self.last_refusal}"
            )

    def drain_events(self) -> list[str]:
        """Return who was banned since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def drain_refusals(self) -> list[dict[str, Any]]:
        """Return the newest messages that were refused since the last call, KEPT_REFUSALS at most."""
        kept = list(self._kept)
        self._kept.clear()
        return kept


def _said(header: Header) -> dict[str, Any]:
    """Return what a header says, without texts that its sender has chosen."""
    rows = next((column.shape[0] for column in header.columns if column.shape), 0)
    return {
        "actor": header.actor,
        "seat": header.seat,
        "epoch": header.epoch,
        "number": header.number,
        "weights_version": header.weights_version,
        "rows": rows,
        "bytes": header.raw_bytes,
    }
