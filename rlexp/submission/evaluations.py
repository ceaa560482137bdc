"""EvaluationThread: plays episodes with the newest weights on the board while a task is trained elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rlexp.agents.board.weights_player import WeightsPlayer
from rlexp.agents.evaluator import evaluation_figures
from rlexp.errors import RlexpError
from rlexp.joined_actors.weights_feed import WeightsFeed
from rlexp.joined_actors.weights_message import Newer

PERIOD_S: Final = 60.0
"""Seconds between the beginnings of two evaluations, at least."""
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class BoardEvaluation:
    """How the weights of one version did."""

    version: int
    """Learner updates behind the weights."""
    figures: dict[str, Any]
    """As under ``evaluation`` in a row of results."""


class EvaluationThread:
    """Owns a thread from its beginning until ``stop``; evaluates the newest version that was asked for."""

    def __init__(
        self,
        player: WeightsPlayer,
        feed: WeightsFeed,
        num_episodes: int,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at once; used by one other thread."""
        self._player, self._feed, self._num_episodes = player, feed, num_episodes
        self._period_s, self._clock = period_s, clock
        self._changed = threading.Condition()
        self._wanted = -1
        self._evaluated = -1
        self._is_last = False
        self._stopping = threading.Event()
        self._results: list[BoardEvaluation] = []
        self._notes: list[str] = []
        self._thread = threading.Thread(target=self._run, name="evaluations", daemon=True)
        self._thread.start()

    def want(self, version: int) -> None:
        """Evaluate ``version`` once the evaluation before is done and its period is over."""
        with self._changed:
            self._wanted = version
            self._changed.notify_all()

    def end_with(self, version: int) -> None:
        """Evaluate ``version`` as the last one, as soon as the evaluation before is done; none where it was the one."""
        with self._changed:
            self._is_last = True
            self._wanted = version
            self._changed.notify_all()

    def take(self) -> tuple[list[BoardEvaluation], list[str]]:
        """Return what was evaluated since the last call, and what went wrong."""
        with self._changed:
            results, self._results = self._results, []
            notes, self._notes = self._notes, []
            return results, notes

    @property
    def is_over(self) -> bool:
        """Whether the last evaluation has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End between two steps of an evaluation; a second call does nothing."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        due_s = self._clock()
        while (newer := self._next(due_s)) is not None:
            due_s = self._clock() + self._period_s
            try:
                self._evaluate(newer)
            except Exception as error:  # what a user's env raises ends no training
                self._note(f"no evaluation: {_in_words(error)}")

    def _next(self, due_s: float) -> Newer | None:
        """Wait for weights to evaluate and return them; None: there will be none."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ready(due_s), self._seconds_until(due_s))
                if self._stopping.is_set() or (self._is_last and self._wanted == self._evaluated):
                    return None
                if not self._is_ready(due_s):
                    continue
                self._evaluated = self._wanted
            try:
                self._feed.fetch(self._evaluated)
            except RlexpError:
                continue  # the board is away, which the thread that looks reports; the next version is tried
            if self._feed.version == self._evaluated:
                return self._feed.newest(None)

    def _is_ready(self, due_s: float) -> bool:
        if self._stopping.is_set():
            return True
        is_new = self._wanted != self._evaluated
        return self._is_last or (is_new and self._clock() >= due_s)

    def _seconds_until(self, due_s: float) -> float | None:
        """Return how long to wait for a change: until ``due_s`` where there is something to evaluate."""
        return None if self._wanted == self._evaluated else max(due_s - self._clock(), 0.0)

    def _evaluate(self, newer: Newer) -> None:
        played = self._player.play(newer, self._num_episodes, self._stopping.is_set)
        if self._stopping.is_set():
            return
        if not played.is_complete:
            self._note(f"only {played}")
        if len(played.returns):
            with self._changed:
                self._results.append(BoardEvaluation(newer.version, evaluation_figures(played)))

    def _note(self, text: str) -> None:
        with self._changed:
            self._notes.append(text)


def _in_words(error: Exception) -> str:
    return error.message if isinstance(error, RlexpError) else f"{type(error).__name__}: {error}"
