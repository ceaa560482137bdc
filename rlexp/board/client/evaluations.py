"""EvaluationThread: plays episodes with the newest weights on the board, while a task is trained elsewhere.

Its BoardEvaluator plays the episodes. Loads no Ray, and torch only if the network needs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rlexp.agents.evaluation import MAX_STEPS, Evaluator, evaluation_figures, evaluation_seed
from rlexp.agents.registry import policies_of
from rlexp.agents.workers import FILTERS, ObservationFilters
from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.messages.payloads import Newer
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.errors import NotFiniteError, RlexpError, TrialError
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, ShouldStop
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import Array

TIMEOUT_S: Final = 600.0
"""Most seconds of an evaluation, as an episode may never end."""
PERIOD_S: Final = 60.0
"""Least seconds between the starts of two evaluations."""
STOP_TIMEOUT_S: Final = 10.0


class BoardEvaluator:
    """Owns the policy of one experiment, which plays with given weights; used by one thread."""

    def __init__(self, experiment: Experiment, modules: UserModules) -> None:
        """Make the env once, to read its spaces; raises EnvError if that fails."""
        config = self._config = experiment.config
        self._env_config = env_config_of(experiment.env, config, modules)
        self._policies = policies_of(experiment)(config, *spaces_of(self._env_config), modules)
        self._policy = self._policies.make_policy()

    def play(self, newer: Newer, num_episodes: int, should_stop: ShouldStop) -> PlayedEpisodes:
        """Return whole episodes under ``evaluation_config``; fewer if ``should_stop`` or TIMEOUT_S end them.

        Raises TrialError if the policy cannot act with these weights, and errors of the env.
        """
        limits = EvaluationLimits(MAX_STEPS, TIMEOUT_S, should_stop)
        seed = evaluation_seed(self._config.seed or 0, newer.version)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                self._policy.set_weights(newer.weights)
                return self._evaluator(newer.moments).play(num_episodes, seed, limits)
        except (KeyError, ValueError, RuntimeError, NotFiniteError) as error:
            raise TrialError(f"weights {newer.version} cannot be evaluated: {error}") from error

    def _evaluator(self, moments: Moments | None) -> Evaluator:
        """Return the evaluator; it standardises observations by ``moments``, if the experiment does."""
        arrays = {} if moments is None else {FILTERS: _of_one_filter(moments)}
        filters = ObservationFilters(self._config, self._policies.observation_space, arrays, num_players=1)
        return Evaluator(self._env_config, self._policies, self._policy, filters)


def _of_one_filter(moments: Moments) -> dict[str, Array]:
    return {
        "count": np.array([moments.count]),
        "mean": moments.mean[np.newaxis],
        "squares": moments.squares[np.newaxis],
    }


@dataclass(frozen=True)
class BoardEvaluation:
    """The result of evaluating one version of weights."""

    version: int
    """Number of learner updates that the weights include."""
    figures: dict[str, Any]
    """The stats, as under ``evaluation`` in a row of results."""


class EvaluationThread:
    """Owns a thread from its beginning until ``stop``; evaluates the newest version that was asked for."""

    def __init__(
        self,
        player: BoardEvaluator,
        feed: WeightsFeed,
        num_episodes: int,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at once; used by one other thread."""
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
        """Evaluate ``version`` after the previous evaluation is done and its period is over."""
        with self._changed:
            self._wanted = version
            self._changed.notify_all()

    def end_with(self, version: int) -> None:
        """Evaluate ``version`` last, right after the previous evaluation; do nothing if that was of ``version``."""
        with self._changed:
            self._is_last = True
            self._wanted = version
            self._changed.notify_all()

    def take(self) -> tuple[list[BoardEvaluation], list[str]]:
        """Return the evaluations since the last call, and the problems."""
        with self._changed:
            results, self._results = self._results, []
            notes, self._notes = self._notes, []
            return results, notes

    @property
    def is_over(self) -> bool:
        """Whether the last evaluation has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End between two steps of an evaluation; idempotent."""
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
            except Exception as error:  # an error of a user's env does not end training
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
                continue  # The board is away, which the watching thread reports; the next version is tried.
            if self._feed.version == self._evaluated:
                return self._feed.newest(None)

    def _is_ready(self, due_s: float) -> bool:
        if self._stopping.is_set():
            return True
        is_new = self._wanted != self._evaluated
        return self._is_last or (is_new and self._clock() >= due_s)

    def _seconds_until(self, due_s: float) -> float | None:
        """Return the seconds to wait for a change: until ``due_s`` if there is something to evaluate."""
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
