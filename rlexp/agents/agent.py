"""The agent: assembles the rooms below into one algorithm and trains it, iteration by iteration."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import gymnasium as gym

from rlexp.agents.evaluator import MAX_STEPS, Evaluator, evaluation_figures, evaluation_seed
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.agents.progress import Progress
from rlexp.agents.replay_states import join_shard_states, split_shard_states
from rlexp.agents.restored_state import check_counters, errors_of
from rlexp.agents.result_row import IterationReport
from rlexp.agents.rollout_fingerprint import rollout_fingerprint
from rlexp.checkpoint import Checkpoint, write_checkpoint
from rlexp.checkpoint.state_codec import AnyArray, join_state, split_state
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_modules import NO_MODULES, UserModules
from rlexp.envs import env_config_of, make_vector_env
from rlexp.errors import CheckpointError, TrialError
from rlexp.metrics.timers import RunningClock
from rlexp.optimizers.policy_optimizer import PolicyOptimizer
from rlexp.policy import Learner, Policy
from rlexp.rollout.evaluation import (
    ActingPolicy,
    EvaluationLimits,
    PlayedEpisodes,
    ReportProgress,
    ShouldStop,
    ignore_progress,
    never,
)
from rlexp.rollout.source import SampleSource
from rlexp.rollout.worker import FragmentInfo
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed
from rlexp.task_pool import ActorLostError, TaskPool

STATE_GROUP = "state"
"""The group of a checkpoint's arrays that belong to its state."""
STALL_TIMEOUT_S = 600.0
"""Training that gets no new sample for so long is given up: every worker hangs."""
STOP_GRACE_S = 1.0
"""How long an iteration that is asked to stop waits for its first sample."""

ConfigT = TypeVar("ConfigT", bound=CommonConfig)


class Agent(ABC, Generic[ConfigT]):
    """Owns learner, optimizer, workers and replay of one trial; used by one thread.

    An algorithm writes ``make_policy``, ``make_learner`` and ``make_optimizer``. Runs without Tune, and
    with an ``InlineTaskPool`` without Ray.
    """

    source: SampleSource
    """Where samples come from; ``make_optimizer`` makes it."""
    stream_seed: int
    """Seeds workers, shards and routing: after a checkpoint another one than before, so that nothing comes twice."""

    def __init__(
        self,
        env: str,
        config: ConfigT,
        pool: TaskPool,
        seed: int,
        checkpoint: Checkpoint | None = None,
        modules: UserModules = NO_MODULES,
    ) -> None:
        """Place everything and publish the first weights, those of ``checkpoint`` where one is given.

        Every process that makes envs may import the user's ``modules``.
        """
        self.config = config
        self.env_config = env_config_of(env, config, modules)
        self.pool = pool
        self.seed = self.stream_seed = seed
        if checkpoint is not None:
            check_counters(checkpoint.path, checkpoint.state)
            self.stream_seed = derive_seed(seed, "resumed", checkpoint.state["num_steps_sampled"])
        self._events: list[str] = []
        self._progress = Progress(config.metrics_smoothing_episodes)
        self._clock = RunningClock()
        self._last_sample_s = math.inf
        probe = make_vector_env(self.env_config, 1)
        self.observation_space, self.action_space = probe.single_observation_space, probe.single_action_space
        probe.close()
        self.filters = ObservationFilters(config, self.observation_space, checkpoint.arrays if checkpoint else {})
        self.learner = self.make_learner()
        if checkpoint is not None:
            checkpoint.check_numbers("learner")
            with errors_of(checkpoint.path):
                self.learner.load_state_dict(checkpoint.arrays["learner"])
        self.optimizer = self.make_optimizer()
        if checkpoint is not None:
            with errors_of(checkpoint.path):
                self._restore(join_state(checkpoint.copies(STATE_GROUP), checkpoint.state), checkpoint.arrays)

    @classmethod
    @abstractmethod
    def make_policy(cls, config: ConfigT, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Policy:
        """Return a new policy for an env's spaces that acts in this process, without exploration."""

    @abstractmethod
    def make_learner(self) -> Learner:
        """Return the learner."""

    @abstractmethod
    def make_optimizer(self) -> PolicyOptimizer:
        """Place workers and replay; return the optimizer that moves experience between them and the learner."""

    @classmethod
    @abstractmethod
    def evaluation_epsilon(cls, config: ConfigT) -> float:
        """Return the ε of evaluation episodes that explore."""

    @abstractmethod
    def stores_replay(self) -> bool:
        """Return whether checkpoints hold what replay holds, which may depend on how much that is."""

    @abstractmethod
    def reports_timing(self) -> bool:
        """Return whether results tell where the optimizer's time goes."""

    @abstractmethod
    def epsilons(self) -> list[Array]:
        """Return ε of the envs of each worker ``[M]``, as of the steps sampled so far."""

    @abstractmethod
    def reported_epsilon(self) -> float:
        """Return the ε up to which an env's episodes count for ``episode_reward_mean``."""

    def train(self, should_stop: ShouldStop = never, report: ReportProgress = ignore_progress) -> dict[str, Any]:
        """Train for one iteration; return its row of results. ``report`` hears how far its evaluation is.

        An iteration ends when both ``timesteps_per_iteration`` env steps were sampled and
        ``min_iter_time_s`` seconds have passed; each may be null or 0, for no minimum, but at least one step of
        the optimizer must have sampled or trained something. It also ends when ``should_stop`` says so; even then
        it has env steps of its own, if some come within STOP_GRACE_S, so that no two rows have the same step.
        """
        started = time.monotonic()
        sampled_before = self.optimizer.counters.num_steps_sampled
        trained_before = self.optimizer.counters.num_steps_trained
        self._last_sample_s = self._clock()
        infos: list[FragmentInfo] = []
        while True:
            self.optimizer.step()
            infos += self._take_infos()
            sampled = self.optimizer.counters.num_steps_sampled - sampled_before
            trained = self.optimizer.counters.num_steps_trained - trained_before
            elapsed_s = time.monotonic() - started
            if self._is_long_enough(sampled, trained, elapsed_s):
                break
            if should_stop() and (sampled > 0 or elapsed_s >= STOP_GRACE_S):
                break
        self._progress.iteration += 1
        self.filters.synchronize(self.source)
        elapsed_s = time.monotonic() - started
        return self._report(infos, elapsed_s, sampled, trained) | self._evaluation_when_due(should_stop, report)

    def evaluate(
        self, num_episodes: int, should_stop: ShouldStop = never, report: ReportProgress = ignore_progress
    ) -> PlayedEpisodes:
        """Play episodes with the learner's weights as ``evaluation_config`` has them, greedily unless it explores.

        They are fewer than ``num_episodes`` if ``evaluation_timeout_s`` passes or ``should_stop`` says so first.
        """
        seed = evaluation_seed(self.seed, self._progress.iteration)
        limits = EvaluationLimits(MAX_STEPS, self.config.evaluation_timeout_s, should_stop)
        return self._evaluator().play(self._current_policy(), num_episodes, seed, limits, report)

    def film(self) -> tuple[Iterator[Array], float]:
        """Return the pictures of one evaluation episode, taken while it is played, and how many make a second."""
        return self._evaluator().film(self._current_policy(), derive_seed(self.seed, "film", self._progress.iteration))

    def drain_events(self) -> list[str]:
        """Return what happened to workers and replay since the last call that a user should know, a sentence each."""
        events, self._events = self._events, []
        return events + self.optimizer.drain_events()

    def _evaluator(self) -> Evaluator:
        epsilon = self.evaluation_epsilon(self.config)
        return Evaluator(self.env_config, self.config.evaluation_config, self.action_space, epsilon)

    def _current_policy(self) -> ActingPolicy:
        policy = self.make_policy(self.config, self.observation_space, self.action_space)
        with self.optimizer.paused():
            policy.set_weights(self.learner.get_weights())
        return self.filters.applied_to(policy)

    def _evaluation_when_due(self, should_stop: ShouldStop, report: ReportProgress) -> dict[str, Any]:
        """Return the row's part about an evaluation, in every ``evaluation_interval``-th iteration.

        A stop that is requested cannot wait for it, and the episodes that end before are the short ones: no figures.
        """
        interval = self.config.evaluation_interval
        if not interval or self._progress.iteration % interval or should_stop():
            return {}
        played = self.evaluate(self.config.evaluation_num_episodes, should_stop, report)
        if should_stop() and not played.is_complete:
            return {}
        if not played.is_complete:
            self._events.append(f"{played}; set evaluation_config.horizon, or a longer evaluation_timeout_s")
        return {"evaluation": evaluation_figures(played)}

    def save(self, directory: Path, metadata: Mapping[str, Any]) -> Path:
        """Write a checkpoint to ``directory``; raises what the file system raises."""
        while True:
            try:
                return self._write_checkpoint(directory, metadata)
            except ActorLostError:
                continue  # a shard failed while it was read; shards that fail too often raise TrialError

    def stop(self) -> None:
        """Stop optimizer, workers and shards; idempotent."""
        self.optimizer.stop()
        self.pool.stop()

    def _write_checkpoint(self, directory: Path, metadata: Mapping[str, Any]) -> Path:
        with self.optimizer.paused():
            arrays: dict[str, Mapping[str, AnyArray]] = {
                "learner": self.learner.state_dict(),
                "weights": self.learner.get_weights(),
                **self.filters.arrays(),
            }
            told = self._state()
        # The learner may continue now, with the batches that it has: no shard hears of it before the next step.
        if self.stores_replay():
            replay_arrays, told["replay"] = split_shard_states(self.optimizer.replay_states())
            arrays |= replay_arrays
        arrays[STATE_GROUP], state = split_state(told)
        return write_checkpoint(directory, arrays, state, metadata)

    def _state(self) -> dict[str, Any]:
        """Return all that has no file of its own in a checkpoint: values for JSON, and arrays."""
        return {
            **self._progress.state(),
            "num_steps_sampled": self.optimizer.counters.num_steps_sampled,
            "num_steps_trained": self.optimizer.counters.num_steps_trained,
            "optimizer": {type(self.optimizer).__name__: self.optimizer.state()},
            "way_of_playing": rollout_fingerprint(self.env_config, self.config),
            "source": self.source.state(),
        }

    def _restore(self, state: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
        """Go on from the state of a checkpoint, and its arrays; an older one lacks all but the counters."""
        self._progress.load(state)
        self.optimizer.counters.num_steps_sampled = state["num_steps_sampled"]
        self.optimizer.counters.num_steps_trained = state["num_steps_trained"]
        if state.get("way_of_playing") == rollout_fingerprint(self.env_config, self.config):
            self.source.load(state["source"])
        if "replay" not in state:
            return
        try:
            self.optimizer.load_replay_states(join_shard_states(arrays, state["replay"]))
        except CheckpointError as error:
            self._events.append(f"replay starts empty: {error.message}")
            return
        told = state.get("optimizer", {}).get(type(self.optimizer).__name__)
        if told is not None:
            self.optimizer.load(told)

    def _is_long_enough(self, sampled: int, trained: int, elapsed_s: float) -> bool:
        """Return whether an iteration of so many steps and seconds may end."""
        steps, seconds = self.config.timesteps_per_iteration or 0, self.config.min_iter_time_s or 0.0
        return sampled + trained > 0 and sampled >= steps and elapsed_s >= seconds

    def _take_infos(self) -> list[FragmentInfo]:
        infos = self.optimizer.drain_infos()
        now = self._clock()
        if infos:
            self._last_sample_s = now
        elif now - self._last_sample_s > STALL_TIMEOUT_S:
            raise TrialError(
                f"no worker delivered a sample for {STALL_TIMEOUT_S:.0f} s",
                "the env hangs in reset or step, or sample_batch_size is far too large for it",
            )
        self.filters.add(infos)
        for info in infos:
            self._progress.add(info.episodes, self.reported_epsilon())
        return infos

    def _report(self, infos: list[FragmentInfo], elapsed_s: float, sampled: int, trained: int) -> dict[str, Any]:
        return IterationReport(
            elapsed_s=elapsed_s,
            sampled=sampled,
            trained=trained,
            counters=self.optimizer.counters,
            stats=self.optimizer.stats(),
            learner=self.learner,
            infos=infos,
            epsilons=self.epsilons(),
        ).row(self._progress, self.reports_timing())
