"""The evaluations of a trial during training, with the learner's current weights.

If workers have processes of their own, evaluations have one too: an env that ends its process, or hangs, then does not
end the trial.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, Final, TypeVar

import numpy as np

from rlexp.agents.evaluation import MAX_STEPS, Evaluator, evaluation_figures, evaluation_seed, evaluator_of
from rlexp.agents.policies import Policies
from rlexp.agents.workers import ObservationFilters
from rlexp.cluster.pool.pool import Actor, ActorLostError, Ref, Resources, TaskPool
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.trial import bundles_of
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import EnvConfig
from rlexp.errors import RlexpError, TrialError
from rlexp.metrics import RunningClock
from rlexp.policy import Weights
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, Playing, ReportProgress, ShouldStop
from rlexp.rollout.fleet import START_S, last_line
from rlexp.rollout.user_callbacks import NO_CALLBACKS, UserCallbacks, callback_classes
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed

LOOK_S: Final = 0.1
"""Seconds between two checks of whether an evaluation must end."""

R = TypeVar("R")

Answer = tuple[int, int] | PlayedEpisodes
"""The progress of an evaluation, in ended episodes and env steps, or its result."""


class EvaluationPlayer:
    """Plays one evaluation after another, each in parts of a second; a task pool places it."""

    def __init__(self, policies: type[Policies[Any]], config: CommonConfig, env_config: EnvConfig) -> None:
        self._config, self._env_config = config, env_config
        self._policies = policies(config, *spaces_of(env_config), env_config.modules)
        classes = callback_classes(config.callback_parts, env_config.modules)
        self._callbacks = NO_CALLBACKS if classes is None else classes.make("the process of evaluations")
        self._playing: Playing | None = None

    def is_ready(self) -> bool:
        """Return True, as soon as the process has started."""
        return True

    def begin(self, weights: Weights, filters: ObservationFilters, num_episodes: int, seed: int) -> Answer:
        """Play the first part of an evaluation; end the previous one if it was cut off."""
        if self._playing is not None:
            self._playing.close()
        evaluator = evaluator_of(self._policies, self._env_config, weights, filters, self._callbacks)
        torch = sys.modules.get("torch")
        if torch is not None:  # as in the trial's process, so that a forward pass gives the same bits
            torch.set_num_threads(max(int(self._config.num_cpus_for_driver), 1))
        limits = EvaluationLimits(MAX_STEPS, self._config.evaluation_timeout_s)
        self._playing = evaluator.playing(num_episodes, seed, limits)
        return self.play_on()

    def play_on(self) -> Answer:
        """Play the next part."""
        assert self._playing is not None
        try:
            return next(self._playing)
        except StopIteration as end:
            played: PlayedEpisodes = end.value
            return played


class EvaluationProcess:
    """Owned by an agent: places an EvaluationPlayer when it is first needed, keeps it, and calls it.

    The player has one call at a time. A player that dies, fails or answers too late is removed.
    """

    def __init__(
        self, pool: TaskPool, policies: type[Policies[Any]], config: CommonConfig, env_config: EnvConfig
    ) -> None:
        self._pool = pool
        self._config = config
        self._settings = policies, config, env_config
        self._player: Actor[EvaluationPlayer] | None = None
        self._asked: Ref[Any] | None = None
        """The call without an answer yet, also of an evaluation that was cut off."""
        self._asked_s = self._timeout_s = 0.0
        """When it was called, and how long the answer may take."""

    def prepare(self, should_stop: ShouldStop) -> None:
        """Start the process if there is none, so that its start does not count as time of an evaluation."""
        if self._player is None:
            resources = Resources(cpus=0, gpus=0, bundle=bundles_of(self._config).of_driver)
            with self._removed_on_error():
                self._player = self._pool.place("evaluation", resources, EvaluationPlayer, *self._settings)
            self._ask(should_stop, START_S, EvaluationPlayer.is_ready)

    def play(
        self,
        weights: Weights,
        filters: ObservationFilters,
        num_episodes: int,
        seed: int,
        should_stop: ShouldStop,
        report: ReportProgress,
    ) -> PlayedEpisodes:
        """Return the episodes of an evaluation; none if it is cut off.

        Raises errors of the env, and TrialError if the process dies or answers too late.
        """
        cut_off = PlayedEpisodes(np.array([]), np.array([], np.int64), num_episodes, 0, 0.0)
        self.prepare(should_stop)
        left_s = self._asked_s + self._timeout_s - time.monotonic()
        if self._asked is not None and self._answer(should_stop, left_s) is None:
            return cut_off
        answer = self._ask(should_stop, START_S, EvaluationPlayer.begin, weights, filters, num_episodes, seed)
        while not isinstance(answer, PlayedEpisodes):
            if answer is None:
                return cut_off
            report(*answer)
            answer = self._ask(should_stop, 0.0, EvaluationPlayer.play_on)
        return answer

    def _ask(
        self,
        should_stop: ShouldStop,
        extra_s: float,
        method: Callable[Concatenate[EvaluationPlayer, ...], R],
        *args: Any,
    ) -> R | None:
        """Return the result of the player's ``method``; None if ``should_stop`` returns True first."""
        assert self._player is not None
        self._timeout_s = self._config.sample_timeout_s + extra_s
        self._asked_s = time.monotonic()
        with self._removed_on_error():
            self._asked = self._pool.call(self._player, method, *args)
        answer: R | None = self._answer(should_stop, self._timeout_s)
        return answer

    def _answer(self, should_stop: ShouldStop, left_s: float) -> Any:
        """Return the answer; None if ``should_stop`` returns True first. Raises TrialError after ``left_s``."""
        assert self._asked is not None
        clock = RunningClock()
        while not should_stop():
            with self._removed_on_error():
                try:
                    answer = self._pool.get(self._asked, LOOK_S)
                except TimeoutError:
                    if clock() <= left_s:
                        continue
                    late = f"the process of evaluations delivered nothing for {self._timeout_s:g} s (sample_timeout_s)"
                    raise TrialError(late) from None
            self._asked = None
            return answer
        return None

    @contextmanager
    def _removed_on_error(self) -> Iterator[None]:
        """Remove the player if it or its pool raises; re-raise the error without the layer that carried it."""
        try:
            yield
        except Exception as error:
            player, self._player, self._asked = self._player, None, None
            if player is not None:
                self._pool.remove(player)
            if isinstance(error, ActorLostError):
                raise TrialError("the process of evaluations died") from error
            raised = getattr(error, "cause", error)
            if raised is error and isinstance(error, RlexpError):
                raise
            raise raised if isinstance(raised, RlexpError) else TrialError(last_line(error)) from error


@dataclass(frozen=True)
class AgentEvaluation:
    """Plays the evaluations of an agent, in its own or the agent's process; owned by one agent."""

    policies: Policies[Any]
    env_config: EnvConfig
    filters: ObservationFilters
    callbacks: UserCallbacks
    seed: int
    """The seed of the trial."""
    get_weights: Callable[[], Weights]
    """A function that returns the learner's current weights."""
    add_event: Callable[[str], None]
    """A function that takes a sentence for the user."""
    process: EvaluationProcess | None
    """The process that plays instead of this one; None: the envs of training are in this process too."""

    def prepare(self, should_stop: ShouldStop) -> None:
        """Start the process that ``play_apart`` needs, if any; raises TrialError if it dies."""
        if self.process is not None:
            self.process.prepare(should_stop)

    def play_apart(
        self, iteration: int, num_episodes: int, should_stop: ShouldStop, report: ReportProgress
    ) -> PlayedEpisodes:
        """Return the same episodes as ``play``, played in a process that no env of this one can end or stop."""
        if self.process is None:
            return self.play(iteration, num_episodes, should_stop, report)
        what = self.get_weights(), self.filters, num_episodes, evaluation_seed(self.seed, iteration)
        return self.process.play(*what, should_stop, report)

    def play(
        self, iteration: int, num_episodes: int, should_stop: ShouldStop, report: ReportProgress
    ) -> PlayedEpisodes:
        """Return the episodes of an evaluation after ``iteration``; see :meth:`Agent.evaluate`."""
        limits = EvaluationLimits(MAX_STEPS, self.policies.config.evaluation_timeout_s, should_stop)
        return self._evaluator().play(num_episodes, evaluation_seed(self.seed, iteration), limits, report)

    def film(self, iteration: int) -> tuple[Iterator[Array], float]:
        """Return a generator of the pictures of an episode after ``iteration``, and their number per second."""
        return self._evaluator().film(derive_seed(self.seed, "film", iteration))

    def figures_when_due(self, iteration: int, should_stop: ShouldStop, report: ReportProgress) -> dict[str, Any]:
        """Return the row's ``evaluation``, in every ``evaluation_interval``-th iteration.

        A requested stop cuts the evaluation off. It then gives no stats, as the episodes that ended are the short ones.
        """
        config = self.policies.config
        interval = config.evaluation_interval
        if not interval or iteration % interval or should_stop():
            return {}
        played = self.play(iteration, config.evaluation_num_episodes, should_stop, report)
        if should_stop() and not played.is_complete:
            return {}
        if not played.is_complete:
            self.add_event(f"{played}; set evaluation_config.horizon, or a longer evaluation_timeout_s")
        return {"evaluation": evaluation_figures(played)}

    def _evaluator(self) -> Evaluator:
        """Return the evaluator of the learner's current weights."""
        return evaluator_of(self.policies, self.env_config, self.get_weights(), self.filters, self.callbacks)
