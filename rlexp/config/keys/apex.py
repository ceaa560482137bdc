"""Ape-X (Horgan et al. 2018): many workers, sharded replay and an asynchronous learner, around DQN or DDPG.

Defaults are RLlib's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from rlexp.config.keys.common import ReplayNeeds, keys_without_effect
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    AUTO,
    RLEXP_ONLY,
    Conflict,
    Count,
    CountOrAuto,
    CountOrZero,
    Positive,
    PositiveFraction,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.replay_keys import OptimizerConfig, ReplayKeys


class AsyncReplayOptimizerConfig(OptimizerConfig):
    """How experience moves in Ape-X: workers, replay shards and the learner run side by side."""

    max_weight_sync_delay: Count = 400
    """Env steps that a worker samples before it gets new weights. Small: workers act with newer weights. Large: fewer
    weights are copied and sent."""

    num_replay_buffer_shards: Count = 4
    """Number of replay shards. Storing in one does not wait for sampling from another."""

    num_cpus_per_shard: Annotated[PositiveOrZero, RLEXP_ONLY] = 0.0
    """CPUs reserved for each replay shard that has a process of its own, on the learner's machine, beside
    ``num_cpus_for_driver``. 0: shards share the CPUs that the others leave.

    With ``replay_storage: auto``, shards that reserve CPUs have processes of their own.
    """

    debug: bool = False
    """Report the seconds that the driver spends on each part of its work as ``info/timing_s``."""

    sample_queue_depth: Annotated[Count, RLEXP_ONLY] = 2
    """Calls to sample in flight per worker. With 2, a worker starts the next fragment while the last one is stored.
    With more, its weights are older.

    Without ``training_intensity``, a call of a worker on the learner's machine returns up to four fragments if they are
    small and take less than 100 ms together.
    """

    replay_queue_depth: Annotated[Count, RLEXP_ONLY] = 4
    """Batches requested in advance from each replay shard. A higher number hides the time to send a batch, but gives
    older priorities."""

    learner_queue_depth: Annotated[Count, RLEXP_ONLY] = 16
    """Maximum number of batches that wait for the learner. A longer queue evens out slow shards, but takes memory and
    has older priorities.

    With ``num_workers: 0`` no batch waits: worker and learner take turns, with one update per fragment, or as many as
    ``training_intensity`` asks for.
    """

    gatherers: Annotated[CountOrAuto, RLEXP_ONLY] = "auto"
    """Processes that collect the fragments of several workers each, store them in replay and report them together, so
    that the driver handles one report for about 2000 transitions instead of each fragment. They reserve no CPU.
    ``auto``: one for each node with workers, if the trial has several nodes; on one machine none up to 128 workers, and
    one for 64 of them above that. 0: none. They need ``replay_storage: actors``."""

    min_weight_publish_s: Annotated[PositiveOrZero | None, RLEXP_ONLY] = None
    """Least seconds between two versions of the weights that are sent to workers. Null: 0 without ``gatherers``; with
    them, the time of sending: the bytes of the weights for each gatherer at 250 MB/s."""


class ApexKeys(ReplayKeys):
    """The keys of Ape-X's data path, beside the keys of the agent whose network it trains."""

    num_workers: CountOrZero = 32
    sample_batch_size: Count = 50
    train_batch_size: Count = 512
    timesteps_per_iteration: CountOrZero | None = 25_000
    min_iter_time_s: PositiveOrZero | None = 30.0
    per_worker_exploration: bool = True
    learning_starts: CountOrZero = 50_000
    buffer_size: Count = 2_000_000
    final_prioritized_replay_beta: PositiveFraction | None = None  # constant, as in the paper
    n_step: Count = 3
    target_network_update_freq: CountOrZero = 500_000

    replay_storage: Annotated[Literal["auto", "actors", "local", "shared_memory", "device"], RLEXP_ONLY] = "auto"
    """Where the replay shards are. ``actors``: each in a process of its own. ``local``: in the learner's process, so
    that nothing is sent, but the learner's CPU core does the work. ``shared_memory``: in the learner's process too, but
    workers write their transitions directly into its memory. ``auto``: ``actors`` if this machine has a core for each
    of them beside the cores of its workers and the learner, else ``local``. With ``num_workers: 0`` always ``local``,
    so that the same file and seed give the same weights.

    ``shared_memory`` needs Linux, and all workers on the learner's machine. Each worker keeps its own newest
    transitions, an equal share of ``buffer_size``, with whole uncompressed observations: for stacked frames this is
    eight times the memory. With ``num_workers: 0`` it is the same as ``local``.

    ``device``: as ``local``, but the frames of observations are in the memory of the learner's GPU, uncompressed and
    each of them once, and batches are gathered there. Needs observations of 1 kB or more. Without a GPU the frames are
    in the learner's process."""

    optimizer: AsyncReplayOptimizerConfig = defaults_of(AsyncReplayOptimizerConfig)
    """How experience moves."""

    @property
    def replay(self) -> ReplayNeeds:
        """Replay that is split over shards, in memory shared with workers, or with its frames on a GPU."""
        is_shared = self.replay_storage == "shared_memory" and self.num_workers > 0
        own = super().replay
        on_device = self.replay_storage == "device"
        optimizer = self.optimizer
        num_shards = optimizer.num_replay_buffer_shards
        return replace(
            own,
            num_shards=num_shards,
            storage="frames" if on_device else own.storage,
            keeps_whole_observations=is_shared,
            on_device=on_device,
            shard_processes=num_shards,
            gatherers=0 if optimizer.gatherers == AUTO else optimizer.gatherers,
            queued_batches=own.queued_batches
            + optimizer.learner_queue_depth
            + num_shards * optimizer.replay_queue_depth,
        )

    @property
    def cpus_of_shards(self) -> float:
        """CPUs of all shards, if they have processes of their own."""
        has_processes = self.replay_storage in ("auto", "actors") and self.num_workers > 0
        return self.optimizer.num_replay_buffer_shards * self.optimizer.num_cpus_per_shard if has_processes else 0.0

    @property
    def needs_one_node(self) -> bool:
        """With shared memory, which processes on other machines do not have."""
        return self.replay_storage == "shared_memory" and self.num_workers > 0

    @property
    def workers_wait(self) -> bool:
        return self.training_intensity is not None

    @property
    def board_obstacle(self) -> str | None:
        """Shared memory, which is limited to this machine; or an obstacle of DQN."""
        if self.replay_storage == "shared_memory":
            return "replay_storage is shared_memory, which joined actors cannot write into"
        return super().board_obstacle

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        storage, cpus = f"replay_storage is {self.replay_storage}", ("optimizer.num_cpus_per_shard",)
        is_local = self.num_workers > 0 and self.replay_storage not in ("auto", "actors")
        yield from keys_without_effect(
            (self.replay_storage == "device", ("compress_observations",), f"{storage}, which keeps frames as they are"),
            (self.num_workers == 0, cpus, "num_workers is 0, so the shards are in the learner's process"),
            (is_local, cpus, f"{storage}, so the shards are in the learner's process"),
            (self.needs_one_node, ("placement",), f"{storage}, so all workers are on the learner's machine"),
        )

    def with_at_most(self, cpus: int) -> dict[str, int]:
        """Return at most ``cpus`` replay shards."""
        return {"optimizer.num_replay_buffer_shards": min(self.optimizer.num_replay_buffer_shards, cpus)}

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.optimizer.num_replay_buffer_shards > self.buffer_size:
            yield Conflict(
                ("optimizer.num_replay_buffer_shards", "buffer_size"),
                f"optimizer.num_replay_buffer_shards is {self.optimizer.num_replay_buffer_shards}, "
                f"more than buffer_size, which is {self.buffer_size}",
                "lower num_replay_buffer_shards or raise buffer_size",
            )
        gatherers = self.optimizer.gatherers
        if gatherers not in (AUTO, 0) and self.replay_storage in ("local", "shared_memory", "device"):
            yield Conflict(
                ("optimizer.gatherers", "replay_storage"),
                f"optimizer.gatherers is {gatherers}, but {self.stated('replay_storage')}: "
                "gatherers can store only in shards that have processes of their own",
                "use replay_storage: actors, or optimizer.gatherers: 0",
            )
        if gatherers not in (AUTO, 0) and self.num_workers == 0:
            yield Conflict(
                ("optimizer.gatherers", "num_workers"),
                f"optimizer.gatherers is {gatherers}, but {self.stated('num_workers')}",
                "use optimizer.gatherers: 0, or more workers",
            )
        if self.needs_one_node and self.num_reserved_workers < self.num_workers:
            yield Conflict(
                ("min_num_workers", "replay_storage"),
                f"{self.stated('min_num_workers')}, but {self.stated('replay_storage')}, "
                "which needs all workers on the learner's machine",
                "leave min_num_workers out, or use another replay_storage",
            )
        if self.replay_storage == "shared_memory" and self.batch_mode == "complete_episodes":
            yield Conflict(
                ("replay_storage", "batch_mode"),
                f"{self.stated('replay_storage')}, which needs fragments of fixed length, "
                f"but {self.stated('batch_mode')}",
                "use batch_mode: truncate_episodes, or another replay_storage",
            )


class ApexConfig(ApexKeys, DQNConfig):
    """What is under ``config:`` for ``run: APEX``."""

    worker_side_prioritization: bool = True

    # These are DQN's: a key that ApexKeys inherits would win over it.
    lr: Positive = 5e-4
    grad_norm_clipping: Positive | None = 40.0


class ApexExperiment(Experiment):
    """An experiment with Ape-X."""

    AGENT = "rlexp.agents.apex.agent:ApexAgent"
    POLICIES = "rlexp.agents.dqn.players:DQNPolicies"
    run: Literal["APEX"]
    config: ApexConfig = defaults_of(ApexConfig)
