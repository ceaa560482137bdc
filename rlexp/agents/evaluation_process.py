"""The evaluations of a trial while it trains, with the weights that its learner has by then.

Where workers have processes of their own, evaluations have one too: an env that ends its process, or hangs, then does
not end the trial.
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
from rlexp.rollout.fleet_member import START_S, last_line
from rlexp.rollout.user_callbacks import NO_CALLBACKS, UserCallbacks, callback_classes
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed

LOOK_S: Final = 0.1
"""Seconds between two looks at whether an evaluation must end."""

R = TypeVar("R")

Answer = tuple[int, int] | PlayedEpisodes
"""How far an evaluation has come, in ended episodes and env steps, or its end."""


@dataclass(frozen=True)
class EvaluationPlayerSpec:
    """What plays the evaluations of a trial, as plain data that any process can play by."""

    policies: type[Policies[Any]]
    config: CommonConfig
    env_config: EnvConfig


class EvaluationPlayer:
    """Plays one evaluation after the other, each in parts of a second; a task pool places it."""

    def __init__(self, spec: EvaluationPlayerSpec) -> None:
        self._config, self._env_config = spec.config, spec.env_config
        modules = spec.env_config.modules
        self._policies = spec.policies(spec.config, *spaces_of(spec.env_config), modules)
        classes = callback_classes(spec.config.callback_parts, modules)
        self._callbacks = NO_CALLBACKS if classes is None else classes.make("the process of evaluations")
        self._playing: Playing | None = None

    def is_ready(self) -> bool:
        """Return True, as soon as the process has started."""
        return True

    def begin(self, weights: Weights, filters: ObservationFilters, num_episodes: int, seed: int) -> Answer:
        """Play the first part of an evaluation; the one before is ended, if it was cut off."""
        if self._playing is not None:
            self._playing.close()
        evaluator = evaluator_of(self._policies, self._env_config, weights, filters, self._callbacks)
        torch = sys.modules.get("torch")
        if torch is not None:  # as in the process of the trial, so that a forward pass has the same bits
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
    """Owned by an agent: lets an EvaluationPlayer play, which it places when it is first needed, and keeps.

    One thing is asked of it at a time. A player that dies, fails or answers too late is removed.
    """

    def __init__(self, pool: TaskPool, spec: EvaluationPlayerSpec) -> None:
        self._pool = pool
        self._spec = spec
        self._player: Actor[EvaluationPlayer] | None = None
        self._asked: Ref[Any] | None = None
        """What is not answered yet, also of an evaluation that was cut off."""
        self._asked_s = self._timeout_s = 0.0
        """When it was asked, and how long the answer may take."""

    def prepare(self, should_stop: ShouldStop) -> None:
        """Start the process, if there is none: so the time that this takes is not that of an evaluation."""
        if self._player is None:
            resources = Resources(cpus=0, gpus=0, bundle=bundles_of(self._spec.config).of_driver)
            with self._removed_on_error():
                self._player = self._pool.place("evaluation", resources, EvaluationPlayer, self._spec)
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

        Raises what the env raises, and TrialError where the process dies or answers too late.
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
        """Return what ``method`` of the player returns; None if ``should_stop`` says so before it has answered."""
        assert self._player is not None
        self._timeout_s = self._spec.config.sample_timeout_s + extra_s
        self._asked_s = time.monotonic()
        with self._removed_on_error():
            self._asked = self._pool.call(self._player, method, *args)
        answer: R | None = self._answer(should_stop, self._timeout_s)
        return answer

    def _answer(self, should_stop: ShouldStop, left_s: float) -> Any:
        """Return what was asked; None if ``should_stop`` says so before. Raises TrialError after ``left_s``."""
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
        """Remove the player where it raises, or its pool does; raise that without the layer that carried it."""
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
    """Owned by one agent."""

    policies: Policies[Any]
    env_config: EnvConfig
    filters: ObservationFilters
    callbacks: UserCallbacks
    seed: int
    """Of the trial."""
    get_weights: Callable[[], Weights]
    """Returns the learner's weights as they are at that moment."""
    add_event: Callable[[str], None]
    """Takes a sentence for the user."""
    process: EvaluationProcess | None
    """Plays in place of this process; None: the envs of training are in this process too."""

    def prepare(self, should_stop: ShouldStop) -> None:
        """Start the process that ``play_apart`` needs, if any; raises TrialError where it dies."""
        if self.process is not None:
            self.process.prepare(should_stop)

    def play_apart(
        self, iteration: int, num_episodes: int, should_stop: ShouldStop, report: ReportProgress
    ) -> PlayedEpisodes:
        """Return the same episodes as ``play``, played where no env can end or stop this process."""
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
        """Return the pictures of an episode after ``iteration``, and how many make a second."""
        return self._evaluator().film(derive_seed(self.seed, "film", iteration))

    def figures_when_due(self, iteration: int, should_stop: ShouldStop, report: ReportProgress) -> dict[str, Any]:
        """Return the row's part about an evaluation, in every ``evaluation_interval``-th iteration.

        A stop that is requested cannot wait for it, and the episodes that end before are the short ones: no figures.
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
        """Return what evaluates the learner's weights as they are now."""
        return evaluator_of(self.policies, self.env_config, self.get_weights(), self.filters, self.callbacks)
