"""The agent: assembles the rooms below into one algorithm and trains it, iteration by iteration."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import gymnasium as gym

from rlexp.agents.evaluator import Evaluator, evaluation_figures
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.agents.replay_states import packed_states, unpacked_states
from rlexp.agents.results import IterationReport
from rlexp.checkpoint import Checkpoint, write_checkpoint
from rlexp.config.common import CommonConfig
from rlexp.envs import env_config_of, make_vector_env
from rlexp.errors import TrialError
from rlexp.metrics.episodes import EpisodeWindow
from rlexp.optimizers.policy_optimizer import PolicyOptimizer
from rlexp.policy import Learner, Policy
from rlexp.rollout.evaluation import Acting
from rlexp.rollout.source import SampleSource
from rlexp.rollout.worker import FragmentInfo
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed
from rlexp.task_pool import TaskPool

STALL_TIMEOUT_S = 600.0
"""Training that gets no new sample for so long is given up: every worker hangs."""

ConfigT = TypeVar("ConfigT", bound=CommonConfig)


class Agent(ABC, Generic[ConfigT]):
    """Owns learner, optimizer, workers and replay of one trial; used by one thread.

    An algorithm writes ``make_policy``, ``make_learner`` and ``make_optimizer``. Runs without Tune, and
    with an ``InlineTaskPool`` without Ray.
    """

    source: SampleSource
    """Where samples come from; ``make_optimizer`` makes it."""

    def __init__(
        self,
        env: str,
        config: ConfigT,
        pool: TaskPool,
        seed: int,
        checkpoint: Checkpoint | None = None,
        imports: tuple[str, ...] = (),
    ) -> None:
        """Place everything and publish the first weights, those of ``checkpoint`` where one is given.

        Every process that makes envs imports the modules ``imports`` first.
        """
        self.config = config
        self.env_config = env_config_of(env, config, imports)
        self.pool = pool
        self.seed = seed
        self._started_s = time.monotonic()
        self._time_before_s = 0.0
        self._iteration = 0
        self._episodes_total = 0
        self._last_sample_s = math.inf
        self._episodes = EpisodeWindow(config.metrics_smoothing_episodes)
        self._reported_episodes = EpisodeWindow(config.metrics_smoothing_episodes)
        probe = make_vector_env(self.env_config, 1)
        self.observation_space, self.action_space = probe.single_observation_space, probe.single_action_space
        probe.close()
        self.filters = ObservationFilters(config, self.observation_space, checkpoint.arrays if checkpoint else {})
        self.learner = self.make_learner()
        if checkpoint is not None:
            self.learner.load_state_dict(checkpoint.arrays["learner"])
        self.optimizer = self.make_optimizer()
        if checkpoint is not None:
            self._restore_counters(checkpoint.state)
            if "replay" in checkpoint.state:
                self.optimizer.load_replay_states(unpacked_states(checkpoint.arrays, checkpoint.state["replay"]))

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

    @abstractmethod
    def evaluation_epsilon(self) -> float:
        """Return the ε of evaluation episodes that explore."""

    @abstractmethod
    def stores_replay(self) -> bool:
        """Return whether checkpoints hold what replay holds."""

    @abstractmethod
    def reports_timing(self) -> bool:
        """Return whether results tell where the optimizer's time goes."""

    @abstractmethod
    def epsilons(self) -> list[Array]:
        """Return ε of the envs of each worker ``[M]``, as of the steps sampled so far."""

    @abstractmethod
    def reported_epsilon(self) -> float:
        """Return the ε up to which an env's episodes count for ``episode_reward_mean``."""

    def train(self, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Train for one iteration; return its row of results.

        An iteration ends when both ``timesteps_per_iteration`` env steps were sampled and
        ``min_iter_time_s`` seconds have passed, or as soon as ``should_stop`` says so.
        """
        started = time.monotonic()
        sampled_before = self.optimizer.counters.num_steps_sampled
        trained_before = self.optimizer.counters.num_steps_trained
        self._last_sample_s = started
        infos: list[FragmentInfo] = []
        while not should_stop():
            self.optimizer.step()
            infos += self._take_infos()
            sampled = self.optimizer.counters.num_steps_sampled - sampled_before
            long_enough = time.monotonic() - started >= self.config.min_iter_time_s
            if sampled >= self.config.timesteps_per_iteration and long_enough:
                break
        self._iteration += 1
        self.filters.synchronize(self.source)
        elapsed_s = time.monotonic() - started
        row = self._report(infos, elapsed_s, sampled_before, trained_before)
        return row | self._evaluation_when_due()

    def evaluate(self, num_episodes: int) -> tuple[Array, Array]:
        """Play episodes with the learner's weights as ``evaluation_config`` has them, greedily unless it explores.

        Returns their returns ``[num_episodes]`` and lengths ``[num_episodes]``.
        """
        seed = derive_seed(self.seed, "evaluation", self._iteration)
        return self._evaluator().play(self._current_policy(), num_episodes, seed)

    def film(self) -> tuple[Iterator[Array], float]:
        """Return the pictures of one evaluation episode, taken while it is played, and how many make a second."""
        return self._evaluator().film(self._current_policy(), derive_seed(self.seed, "film", self._iteration))

    def drain_events(self) -> list[str]:
        """Return what happened to workers and replay since the last call that a user should know, a sentence each."""
        return self.optimizer.drain_events()

    def _evaluator(self) -> Evaluator:
        return Evaluator(self.env_config, self.config.evaluation_config, self.action_space, self.evaluation_epsilon())

    def _current_policy(self) -> Acting:
        policy = self.make_policy(self.config, self.observation_space, self.action_space)
        with self.optimizer.paused():
            policy.set_weights(self.learner.get_weights())
        return self.filters.applied_to(policy)

    def _evaluation_when_due(self) -> dict[str, Any]:
        """Return the row's part about an evaluation, in every ``evaluation_interval``-th iteration."""
        interval = self.config.evaluation_interval
        if not interval or self._iteration % interval:
            return {}
        return {"evaluation": evaluation_figures(*self.evaluate(self.config.evaluation_num_episodes))}

    def save(self, directory: Path, metadata: Mapping[str, Any]) -> Path:
        """Write a checkpoint to ``directory``; raises what the file system raises."""
        with self.optimizer.paused():
            state: dict[str, Any] = {
                "iteration": self._iteration,
                "time_total_s": self._time_total_s(),
                "episodes_total": self._episodes_total,
                "num_steps_sampled": self.optimizer.counters.num_steps_sampled,
                "num_steps_trained": self.optimizer.counters.num_steps_trained,
            }
            arrays = {"learner": dict(self.learner.state_dict()), "weights": dict(self.learner.get_weights())}
            arrays |= self.filters.arrays()
            if self.stores_replay():
                replay_arrays, state["replay"] = packed_states(self.optimizer.replay_states())
                arrays |= replay_arrays
        return write_checkpoint(directory, arrays, state, metadata)

    def stop(self) -> None:
        """Stop optimizer, workers and shards; idempotent."""
        self.optimizer.stop()
        self.pool.stop()

    def _take_infos(self) -> list[FragmentInfo]:
        infos = self.optimizer.drain_infos()
        now = time.monotonic()
        if infos:
            self._last_sample_s = now
        elif now - self._last_sample_s > STALL_TIMEOUT_S:
            raise TrialError(
                f"no worker delivered a sample for {STALL_TIMEOUT_S:.0f} s",
                "the env hangs in reset or step, or sample_batch_size is far too large for it",
            )
        self.filters.add(infos)
        for info in infos:
            episodes = info.episodes
            reported = episodes.epsilons <= self.reported_epsilon()
            self._episodes.extend(episodes.returns, episodes.lengths)
            self._reported_episodes.extend(episodes.returns[reported], episodes.lengths[reported])
        return infos

    def _report(
        self, infos: list[FragmentInfo], elapsed_s: float, sampled_before: int, trained_before: int
    ) -> dict[str, Any]:
        num_episodes = sum(len(info.episodes.returns) for info in infos)
        self._episodes_total += num_episodes
        counters = self.optimizer.counters
        report = IterationReport(
            elapsed_s=elapsed_s,
            sampled=counters.num_steps_sampled - sampled_before,
            trained=counters.num_steps_trained - trained_before,
            counters=counters,
            stats=self.optimizer.stats(),
            learner=self.learner,
            infos=infos,
            epsilons=self.epsilons(),
        )
        reported, everybody = self._reported_episodes.summary(), self._episodes.summary()
        return {
            "training_iteration": self._iteration,
            "timesteps_total": counters.num_steps_sampled,
            "timesteps_this_iter": report.sampled,
            "time_total_s": self._time_total_s(),
            "time_this_iter_s": elapsed_s,
            "episodes_total": self._episodes_total,
            "episodes_this_iter": num_episodes,
            "episode_reward_mean": reported.reward_mean,
            "episode_reward_min": reported.reward_min,
            "episode_reward_max": reported.reward_max,
            "episode_reward_mean_all": everybody.reward_mean,
            "episode_len_mean": reported.len_mean,
            "info": report.info(self.reports_timing()),
        }

    def _restore_counters(self, state: Mapping[str, Any]) -> None:
        self._iteration = state["iteration"]
        self._time_before_s = state["time_total_s"]
        self._episodes_total = state["episodes_total"]
        self.optimizer.counters.num_steps_sampled = state["num_steps_sampled"]
        self.optimizer.counters.num_steps_trained = state["num_steps_trained"]

    def _time_total_s(self) -> float:
        return self._time_before_s + time.monotonic() - self._started_s
