"""The agent: assembles workers, optimizer and learner into one algorithm and trains it, iteration by iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rlexp.agents.evaluation_process import AgentEvaluation, EvaluationProcess
from rlexp.agents.iteration import (
    UNBOUNDED,
    Iteration,
    IterationBounds,
    IterationReport,
    Progress,
    ReturnGoal,
    StallWatch,
)
from rlexp.agents.policies import Policies
from rlexp.agents.workers import (
    JoinedActors,
    MakeSpec,
    MakeWorker,
    ObservationFilters,
    PlayedTrial,
    WorkerLinks,
    WorkerParts,
    errors_of,
    load_learner,
    place_workers,
    resumed_seed,
    rollout_fingerprint,
    worker_spec,
)
from rlexp.cluster.pool.pool import ActorLostError, TaskPool
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.envs.action_masks import like
from rlexp.envs.make import rows_per_env, spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.optimizers.policy_optimizer import Figures, PolicyOptimizer
from rlexp.policy import Learner, Weights
from rlexp.rollout.evaluation import PlayedEpisodes, ReportProgress, ShouldStop, ignore_progress, never
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.source import SampleSource
from rlexp.rollout.user_callbacks import end_iteration, trial_callbacks
from rlexp.rollout.worker import RolloutWorker
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.runs.checkpoints import write_checkpoint
from rlexp.sample_batch import Array
from rlexp.states import AnyArray, join_state, split_state

STATE_GROUP = "state"
"""The group of a checkpoint's arrays that belong to the agent's state."""
STOP_GRACE_S = 1.0
"""Seconds that an iteration which is asked to stop waits for its first sample."""

ConfigT = TypeVar("ConfigT", bound=CommonConfig)
CheckpointArrays = dict[str, Mapping[str, AnyArray]]
"""The arrays of a checkpoint, by group and name."""


class Agent(ABC, Generic[ConfigT]):
    """Owns the optimizer and the workers of one trial; used by one thread. An algorithm writes the abstract methods."""

    POLICIES: ClassVar[type[Policies[Any]]]
    """The class that plays the algorithm outside of training. ``agent_class`` refuses an agent without it."""

    def __init__(
        self,
        env: str,
        config: ConfigT,
        pool: TaskPool,
        seed: int,
        checkpoint: Checkpoint | None = None,
        modules: UserModules = NO_MODULES,
        board: JoinedActors | None = None,
    ) -> None:
        """Place all actors and publish the first weights, which come from ``checkpoint`` if there is one.

        With ``board``, which it owns from now on, actors can join.

        Every process that makes envs may import the user's ``modules``. ``stream_seed`` seeds workers, shards and
        routing: after a checkpoint it differs, so that no random stream repeats.
        """
        self.config = config
        self.env_config = env_config_of(env, config, modules)
        self.callbacks = trial_callbacks(config, modules)
        self.pool = pool
        self.board = board
        self.seed = seed
        self.stream_seed = seed if checkpoint is None else resumed_seed(seed, checkpoint)
        self._events: list[str] = []
        self._sampling: tuple[Iteration, IterationBounds] | None = None
        """The iteration that samples now."""
        self._progress = Progress(config.metrics_smoothing_episodes, self.callbacks.episode_metrics)
        self._stall_watch = StallWatch(is_patient=board is not None)
        self.observation_space, self.action_space = spaces_of(self.env_config)
        self.env_config = like(self.env_config, self.observation_space)
        self.rows_per_env = rows_per_env(self.env_config)
        self.policies = self.POLICIES(config, self.observation_space, self.action_space, modules)
        arrays = checkpoint.arrays if checkpoint else {}
        self.filters = ObservationFilters(config, self.observation_space, arrays, self.num_players)
        self._evaluation = self._make_evaluation()
        learner = self.make_learner()
        if checkpoint is not None:
            load_learner(learner, checkpoint)
        self.source = self.make_source()
        self.optimizer = self.make_optimizer(learner, self.source)
        self.optimizer.start()
        if checkpoint is not None:
            with errors_of(checkpoint.path):
                self._restore(join_state(checkpoint.copies(STATE_GROUP), checkpoint.state), checkpoint.arrays)

    @abstractmethod
    def make_learner(self) -> Learner:
        """Return the learner."""

    @abstractmethod
    def make_source(self) -> SampleSource:
        """Return the source of samples, usually ``place_workers``."""

    @abstractmethod
    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        """Return the parts of a worker beside the env; ``num_threads`` are for its forward passes."""

    @abstractmethod
    def make_optimizer(self, learner: Learner, source: SampleSource) -> PolicyOptimizer:
        """Return the optimizer that moves experience from ``source`` to ``learner`` and owns both; place its actors."""

    def stats(self) -> Figures:
        """Return the agent's stats for the results, beside the optimizer's stats."""
        return {} if self.board is None else self.board.figures(self.source)

    def observe(self, row: Mapping[str, Any], infos: Sequence[SampleInfo]) -> None:
        """Read an iteration's row and the samples' ``infos``, to adjust the next iteration."""

    def add_to_checkpoint(self, arrays: CheckpointArrays, state: dict[str, Any]) -> None:
        """Add state that may be read while the learner continues, but before the next step of the optimizer."""

    def restore_optimizer(self, state: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
        """Let the optimizer continue from the state of a checkpoint, which may be of another optimizer."""
        own_state = state.get("optimizer", {}).get(type(self.optimizer).__name__)
        if own_state is not None:
            self.optimizer.load(own_state)

    @property
    def num_players(self) -> int:
        """Number of the trial's own workers and of the seats of actors that join it."""
        return max(self.config.num_workers, 1) if self.board is None else self.board.num_players(self.config)

    @property
    def plays_alone(self) -> bool:
        """Whether the trial's only worker is in its own process."""
        return self.config.num_workers == 0 and self.board is None

    def place_workers(self, links: WorkerLinks) -> SampleSource:
        """Place the rollout workers; with a board they may be none."""
        if self.board is not None and self.config.num_workers == 0:
            return self.with_board(None)
        workers = self.pool, self.config, self.spec_maker(), self.stream_seed
        return self.with_board(place_workers(*workers, links, self.worker_class()))

    def worker_class(self) -> MakeWorker:
        """Return the class of its workers; each is made of its spec, in its process."""
        return RolloutWorker

    def with_board(self, own: SampleSource | None) -> SampleSource:
        """Return ``own`` workers, together with the actors that join if there is a board."""
        if self.board is None:
            assert own is not None
            return own
        trial = PlayedTrial(self.env_config, self.stream_seed, self.observation_space, self.action_space)
        return self.board.beside(own, self.pool, self.config, trial)

    def spec_maker(self) -> MakeSpec:
        """Return the function that makes the specs of the workers."""
        return partial(worker_spec, self.config, self.env_config, self.filters, self.worker_parts)

    def train(
        self,
        should_stop: ShouldStop = never,
        report: ReportProgress = ignore_progress,
        bounds: IterationBounds = UNBOUNDED,
    ) -> dict[str, Any]:
        """Train for one iteration; return its row of results. ``report`` is called with its evaluation's progress.

        An iteration ends when both ``timesteps_per_iteration`` env steps were sampled and
        ``min_iter_time_s`` seconds have passed; each may be null or 0, for no minimum. It ends earlier at one of
        ``bounds``, to one step of the optimizer. In all cases, at least one such step must have sampled or trained
        something, and the optimizer must be at rest. It also ends when ``should_stop`` says so, at any step; even then
        it has env steps of its own, if some come within STOP_GRACE_S, so that no two rows have the same step.
        """
        iteration = Iteration(self.optimizer.counters)
        self._sampling = iteration, bounds
        self._stall_watch.begin()
        infos: list[SampleInfo] = []
        goal = ReturnGoal(self._progress, bounds)
        while True:
            self.optimizer.step(should_stop)
            infos += self._take_infos()
            if self.plays_alone and self.optimizer.at_rest:  # neither time nor an interrupt decides what it sees
                interval = self.config.timesteps_per_iteration or 0
                self.filters.synchronize(self.source, self.optimizer.counters.num_steps_sampled, interval)
            if self.optimizer.at_rest and (goal.is_reached() or self._may_end(iteration, bounds)):
                break
            if should_stop() and (iteration.sampled > 0 or iteration.elapsed_s >= STOP_GRACE_S):
                break
        self._sampling = None
        self._progress.iteration += 1
        if not self.plays_alone:
            self.filters.synchronize(self.source, self.optimizer.counters.num_steps_sampled)
        row = self._report(iteration, infos)
        self.observe(row, infos)
        evaluated = self._evaluation.figures_when_due(self._progress.iteration, should_stop, report)
        return end_iteration(self.callbacks, row | evaluated)

    def sampling_progress(self) -> str | None:
        """Return how far the iteration is that samples now, in words; None between two."""
        if self._sampling is None:
            return None
        iteration, bounds = self._sampling
        waits_for = self.waits_for() if self.optimizer.counters.num_steps_trained == 0 else ""
        said = f"{iteration.progress(self.config, bounds)}{f'; {waits_for}' if waits_for else ''}"
        return f"iteration {self._progress.iteration + 1}: {said}"

    def waits_for(self) -> str:
        """Return what the first update of the learner waits for, in words; empty if that is not known."""
        return ""

    def prepare_evaluation(self, should_stop: ShouldStop = never) -> None:
        """Start the process in which ``evaluate`` plays, if it needs one: it takes a second, once."""
        self._evaluation.prepare(should_stop)

    def evaluate(
        self, num_episodes: int, should_stop: ShouldStop = never, report: ReportProgress = ignore_progress
    ) -> PlayedEpisodes:
        """Play episodes with the learner's weights and ``evaluation_config``, greedily unless it sets ``explore``.

        There are fewer than ``num_episodes`` if ``evaluation_timeout_s`` passes or ``should_stop`` returns True first.
        If workers have their own processes, the evaluation has one too.
        """
        return self._evaluation.play_apart(self._progress.iteration, num_episodes, should_stop, report)

    def film(self) -> tuple[Iterator[Array], float]:
        """Return a generator of the pictures of one evaluation episode, and their number per second."""
        return self._evaluation.film(self._progress.iteration)

    def drain_events(self) -> list[str]:
        """Return the events of workers and replay since the last call that a user should know, a sentence each."""
        events, self._events = self._events, []
        return events + self.optimizer.drain_events()

    def add_event(self, event: str) -> None:
        """Let ``drain_events`` return the sentence ``event``."""
        self._events.append(event)

    def _make_evaluation(self) -> AgentEvaluation:
        process = None
        if self.config.num_workers:
            process = EvaluationProcess(self.pool, self.POLICIES, self.config, self.env_config)
        given = self.filters, self.callbacks, self.seed, self._weights, self.add_event
        return AgentEvaluation(self.policies, self.env_config, *given, process)

    def _weights(self) -> Weights:
        """Return the learner's current weights."""
        with self.optimizer.paused() as learner:
            return learner.get_weights()

    def save(self, directory: Path, metadata: Mapping[str, Any], with_replay: bool = True) -> Path:
        """Write a checkpoint to ``directory``; errors of the file system are raised.

        ``with_replay`` false leaves out what :meth:`add_to_checkpoint` adds, whatever the keys are.
        """
        while True:
            try:
                return self._write_checkpoint(directory, metadata, with_replay)
            except ActorLostError:
                continue  # An actor failed while its state was read. Too many such failures raise TrialError.

    def stop(self) -> None:
        """Stop optimizer, workers and shards; idempotent."""
        self.optimizer.stop()
        self.pool.stop()

    def _write_checkpoint(self, directory: Path, metadata: Mapping[str, Any], with_replay: bool) -> Path:
        with self.optimizer.paused() as learner:
            arrays: CheckpointArrays = {
                "learner": learner.state_dict(),
                "weights": learner.get_weights(),
                **self.filters.arrays(),
            }
            whole_state = self._state()
        # The learner may continue now with its queued batches, as only the next step uses their results.
        if with_replay:
            self.add_to_checkpoint(arrays, whole_state)
        arrays[STATE_GROUP], state = split_state(whole_state)
        return write_checkpoint(directory, arrays, state, metadata)

    def _state(self) -> dict[str, Any]:
        """Return all state without a file of its own in a checkpoint: values for JSON, and arrays."""
        return {
            **self._progress.state(),
            "num_steps_sampled": self.optimizer.counters.num_steps_sampled,
            "num_steps_trained": self.optimizer.counters.num_steps_trained,
            "optimizer": {type(self.optimizer).__name__: self.optimizer.state()},
            "rollout_fingerprint": rollout_fingerprint(self.env_config, self.config, self.board is not None),
            "source": self.source.state(),
            "callbacks": self.callbacks.state(),
            "filters_shared_at": self.filters.shared_at,
        }

    def _restore(self, state: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
        """Continue from the state of a checkpoint, and its arrays; an older one has only the counters."""
        self._progress.load(state)
        self.callbacks.load(state.get("callbacks"))
        self.optimizer.counters.num_steps_sampled = state["num_steps_sampled"]
        self.optimizer.counters.num_steps_trained = state["num_steps_trained"]
        # Earlier releases wrote checkpoints right after workers had got the moments.
        self.filters.shared_at = int(state.get("filters_shared_at", state["num_steps_sampled"]))
        if state.get("rollout_fingerprint") == rollout_fingerprint(
            self.env_config, self.config, self.board is not None
        ):
            self.source.load(state["source"])
        self.restore_optimizer(state, arrays)

    def _may_end(self, iteration: Iteration, bounds: IterationBounds) -> bool:
        """Return whether ``iteration`` has its minimum, or has made progress and reached one of ``bounds``."""
        if iteration.has_minimum(self.config):
            return True
        counters = self._progress.counters(self.optimizer, self.source.num_weight_syncs)
        return iteration.has_progress and bounds.reached(counters)

    def _take_infos(self) -> list[SampleInfo]:
        infos = self.optimizer.drain_infos()
        self._stall_watch.look(infos)
        self.filters.add(infos)
        for info in infos:
            self._progress.add(info.episodes)
        return infos

    def _report(self, iteration: Iteration, infos: list[SampleInfo]) -> dict[str, Any]:
        return IterationReport(
            elapsed_s=iteration.elapsed_s,
            sampled=iteration.sampled,
            trained=iteration.trained,
            counters=self.optimizer.counters,
            num_workers=self.num_players,
            infos=infos,
            figures={**self.optimizer.stats(), **self.stats()},
        ).row(self._progress)
