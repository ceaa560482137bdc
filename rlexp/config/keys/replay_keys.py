"""The keys of every agent that learns from replay: its size, how transitions are drawn, and targets.

Defaults are RLlib 0.5.3's DQN's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

from rlexp.config.keys.common import (
    BOARD_LINE,
    Caution,
    CommonConfig,
    FactLine,
    JoinableKeys,
    ReplayNeeds,
    ScheduledKeys,
)
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    KeyGroup,
    Positive,
    PositiveFraction,
    defaults_of,
)

_BETA: Final = (
    "prioritized_replay_beta",
    "final_prioritized_replay_beta",
    "beta_annealing_fraction",
    "prioritized_replay_beta_annealing_timesteps",
)
_PRIORITIES: Final = (
    *("prioritized_replay_alpha", "prioritized_replay_eps", "worker_side_prioritization"),
    *("importance_weight_normalization", *_BETA),
)

_LEAST_EPS: Final = 1e-3
_MOST_ADAM_EPSILON: Final = 1e-5


DATA_LINE: Final = FactLine(
    "data",
    (
        "replay {info/replay_fill:percent} full {info/replay_fill_per_shard:levels}",
        "learner queue {info/learner_queue_size:count}/{info/learner_queue_capacity:count}",
        "weight age {info/weight_age:count}",
    ),
)


class OptimizerConfig(KeyGroup):
    """How experience moves. Most agents sample, store and learn in turn, and have no keys here."""


class ReplayKeys(JoinableKeys, ScheduledKeys):
    """The keys of replay, and the meaning of null for them."""

    WORKERS_USE_GPUS = False
    ROLLOUT_KEYS = CommonConfig.ROLLOUT_KEYS | {"n_step", "worker_side_prioritization"}
    AGENT_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("info/num_target_updates", "info/num_fragments_lost", "info/mean_importance_weight", "info/adam_step_share"),
        *("info/replay_fill", "info/replay_fill_per_shard"),
        *("info/learner_queue_size", "info/learner_queue_capacity", "info/weight_age", "info/num_stale_priorities"),
        *("info/learner/lr", "info/learner/cur_lr", "info/learner/mean_q", "info/learner/mean_td_error"),
    )
    DISPLAYED = (*CommonConfig.DISPLAYED, DATA_LINE, BOARD_LINE)
    SHARED_WITH_OPTIMIZER = (
        "buffer_size",
        "learning_starts",
        "prioritized_replay",
        "prioritized_replay_alpha",
        "prioritized_replay_beta",
        "prioritized_replay_eps",
        "final_prioritized_replay_beta",
        "beta_annealing_fraction",
        "schedule_max_timesteps",
        "sample_batch_size",
        "train_batch_size",
        "clip_rewards",
    )
    KEPT_BY_PBT = (
        *CommonConfig.KEPT_BY_PBT,
        *("buffer_size", "prioritized_replay", "prioritized_replay_alpha", "checkpoint_replay", "replay_storage"),
        "board",
    )
    """The parent's keys, and keys of replay: a trial with another replay would continue with an empty one."""

    learning_starts: CountOrZero = 1000
    """Transitions that must be added to replay before the learner starts, split evenly over the shards. May be more
    than ``buffer_size``."""

    buffer_size: Count = 50_000
    """Capacity of replay in transitions, all shards together. The oldest are overwritten first."""

    prioritized_replay: bool = True
    """Sample transitions in proportion to priority^alpha (Schaul et al. 2016). False: uniformly."""

    worker_side_prioritization: bool = False
    """Let workers compute the first priority of transitions. False: new ones get the highest priority so far."""

    prioritized_replay_alpha: Fraction = 0.6
    """Exponent of the priorities. 0: uniform sampling. 1: in proportion to the TD error."""

    prioritized_replay_beta: PositiveFraction = 0.4
    """Exponent of the importance-sampling weights at the start. 1 corrects the sampling bias in full."""

    final_prioritized_replay_beta: PositiveFraction | None = 0.4
    """Exponent of the importance-sampling weights at the end of its schedule. Null: constant."""

    beta_annealing_fraction: Fraction = 0.2
    """Part of ``schedule_max_timesteps`` (trained steps) over which beta changes linearly to its final value."""

    prioritized_replay_beta_annealing_timesteps: CountOrZero | None = None
    """Trained steps over which beta changes. Null: ``beta_annealing_fraction`` of ``schedule_max_timesteps``."""

    prioritized_replay_eps: Positive = 1e-6
    """Added to each absolute TD error, so that no priority is 0."""

    importance_weight_normalization: Annotated[Literal["buffer", "batch"], RLEXP_ONLY] = "buffer"
    """The rows whose highest importance-sampling weight becomes 1. ``buffer``: all rows in replay, as in RLlib; a
    single row of low priority makes the weights of all others small, and with them the steps. ``batch``: the rows of
    each batch, as in Dopamine."""

    compress_observations: bool = True
    """Compress observations of 1 kB or more, such as images, in replay (LZ4, lossless)."""

    checkpoint_replay: Annotated[bool | None, RLEXP_ONLY] = None
    """Save the contents of replay in checkpoints, so that a resumed run does not have to fill it again.

    With ``num_workers: 0`` a resumed run is then bit by bit equal to an uninterrupted one, if the environment's state
    consists of plain Python and NumPy values. Null: true if full replay takes at most 256 MB.
    """

    training_intensity: Positive | None = None
    """Trained steps per sampled step; the side that is ahead waits. Null: APEX samples and trains as fast as it can,
    DQN trains one batch after each round of fragments, or over a board for each fragment."""

    n_step: Count = 1
    """Number of rewards added up in one transition before bootstrapping; never across the end of an episode."""

    target_network_update_freq: CountOrZero = 500
    """Steps between two updates of the target network: trained steps for APEX and APEX_DDPG, else sampled steps. 0: it
    is updated after each update of the online network."""

    tau: PositiveFraction = 1.0
    """Share of the way to the online network's weights that an update moves the target network's. 1: a copy.

    With less, it follows slowly: ``target_network_update_freq: 0`` goes with it (Lillicrap et al. 2016).
    """

    optimizer: OptimizerConfig = defaults_of(OptimizerConfig)
    """How experience moves."""

    @property
    def resolved_beta_annealing_timesteps(self) -> int:
        """``prioritized_replay_beta_annealing_timesteps``; null is decided by ``beta_annealing_fraction``."""
        given = self.prioritized_replay_beta_annealing_timesteps
        return int(self.beta_annealing_fraction * self.schedule_max_timesteps) if given is None else given

    @property
    def resolved_final_prioritized_replay_beta(self) -> float:
        """``final_prioritized_replay_beta``; null is decided by ``prioritized_replay_beta``."""
        final = self.final_prioritized_replay_beta
        return self.prioritized_replay_beta if final is None else final

    @property
    def replay(self) -> ReplayNeeds:
        """One shard of transitions over ``n_step`` steps."""
        return ReplayNeeds(
            capacity=self.buffer_size,
            capacity_key="buffer_size",
            least_capacity=self.train_batch_size,
            num_shards=1,
            n_step=self.n_step,
            storage="compressed_frames" if self.compress_observations else "frames",
            keeps_whole_observations=False,
            in_checkpoints=self.checkpoint_replay,
            workers_send_td_errors=self.worker_side_prioritization,
        )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        if not self.prioritized_replay:
            yield from ((key, "prioritized_replay is false") for key in _PRIORITIES)
        if self.prioritized_replay_beta_annealing_timesteps is not None:
            yield "beta_annealing_fraction", "prioritized_replay_beta_annealing_timesteps is given"

    def cautions(self) -> Iterator[Caution]:
        yield from super().cautions()
        first, last = self.prioritized_replay_beta, self.resolved_final_prioritized_replay_beta
        if self.prioritized_replay and last < first:
            message = f"decreases from {first:g} to final_prioritized_replay_beta: {last:g}"
            constant = "For a constant beta, write final_prioritized_replay_beta: null"
            yield Caution("prioritized_replay_beta", f"{message}. {constant}")
        if self._shrinks_steps:
            yield Caution(
                "adam_epsilon",
                f"is {self.adam_epsilon:g}, which is large beside small gradients, and importance weights make them "
                f"small if a single row has the priority prioritized_replay_eps: {self.prioritized_replay_eps:g}. "
                "Steps may then be a tenth of lr: info/adam_step_share in the results says how large they are. "
                "importance_weight_normalization: batch makes them larger",
            )

    @property
    def _shrinks_steps(self) -> bool:
        """Whether gradients are likely to be small beside ``adam_epsilon``: seen on MinAtar and Pong with 1.5e-4."""
        has_small_weights = self.prioritized_replay and self.importance_weight_normalization == "buffer"
        return has_small_weights and self.prioritized_replay_eps < _LEAST_EPS and self.adam_epsilon > _MOST_ADAM_EPSILON

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.train_batch_size > self.buffer_size:
            message = f"{self.stated('train_batch_size')}, more than buffer_size, which is {self.buffer_size}"
            hint = "lower train_batch_size or raise buffer_size"
            yield Conflict(("train_batch_size", "buffer_size"), message, hint)
