"""DQN's keys and defaults: those of RLlib 0.5.3 unless a docstring says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from rlexp.config.common import CommonConfig
from rlexp.config.fields import (
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    KeyGroup,
    LayerSizes,
    Positive,
    PositiveFraction,
    PositiveOrZero,
)

EpsilonLadder = Literal["worker", "env"]


class OptimizerConfig(KeyGroup):
    """How experience moves. DQN samples, stores and learns in turn: it needs no keys of its own."""


class DQNConfig(CommonConfig):
    """What is under ``config:`` for ``run: DQN``."""

    SHARED_WITH_OPTIMIZER: ClassVar[tuple[str, ...]] = (
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
    """Keys that RLlib copied into ``optimizer:``, so files may have them there; they stand flat here."""

    num_workers: CountOrZero = 0
    sample_batch_size: Count = 4
    lr: Positive = 5e-4
    train_batch_size: Count = 32
    timesteps_per_iteration: CountOrZero = 1000
    min_iter_time_s: PositiveOrZero = 1.0

    per_worker_exploration: bool = False
    """Give worker i of N the constant epsilon 0.4^(1 + 7 i/(N-1)) instead of the schedule (Horgan et al. 2018)."""

    epsilon_ladder: EpsilonLadder | None = None
    """With ``per_worker_exploration``: one epsilon a worker, or one for each env of each worker.

    Null: ``worker``, as in RLlib; ``env`` where there is at most one worker, which would else have 0.4 in all its envs.
    """

    exploration_fraction: Fraction = 0.1
    """Part of ``schedule_max_timesteps`` over which epsilon falls linearly from 1 to ``exploration_final_eps``."""

    exploration_final_eps: Fraction = 0.02
    """Epsilon at the end of its schedule."""

    schedule_max_timesteps: Count = 100_000
    """The steps of which ``exploration_fraction`` (sampled) and ``beta_annealing_fraction`` (trained) are parts."""

    learning_starts: CountOrZero = 1000
    """Transitions that replay must hold before the learner starts; split evenly over the shards."""

    buffer_size: Count = 50_000
    """Transitions that replay holds, of all shards together; the oldest go first."""

    prioritized_replay: bool = True
    """Draw transitions in proportion to priority^alpha (Schaul et al. 2016) instead of uniformly."""

    worker_side_prioritization: bool = False
    """Let workers compute the first priority of their transitions; else new ones enter with the highest so far."""

    prioritized_replay_alpha: Positive = 0.6
    """Exponent of the priorities: towards 0 draws are uniform, at 1 proportional to the TD error."""

    prioritized_replay_beta: PositiveFraction = 0.4
    """Exponent of the importance-sampling weights at the start; 1 corrects in full for the uneven draws."""

    final_prioritized_replay_beta: PositiveFraction | None = 0.4
    """Exponent of the importance-sampling weights at the end of its schedule. Null: it stays as it started."""

    beta_annealing_fraction: Fraction = 0.2
    """Part of ``schedule_max_timesteps`` (trained steps) over which beta moves linearly to its final value."""

    prioritized_replay_eps: Positive = 1e-6
    """Added to each absolute TD error, so that no transition's priority is 0."""

    double_q: bool = True
    """Choose the next action with the online network, value it with the target network (van Hasselt et al. 2016)."""

    dueling: bool = True
    """Split the head in a state value and centred advantages (Wang et al. 2016)."""

    hiddens: LayerSizes = (256,)
    """Sizes of the layers in each head, behind the model; ``[]`` for none."""

    n_step: Count = 1
    """Rewards folded into one transition before it bootstraps; never across the end of an episode."""

    target_network_update_freq: Count = 500
    """Steps between two copies of the network to the target network: DQN counts sampled steps, APEX trained ones."""

    adam_epsilon: Positive = 1e-8
    """Term that keeps Adam's denominator from 0."""

    grad_norm_clipping: Positive | None = 40.0
    """Largest norm of the gradient of all variables together. Null: never clipped."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """How experience moves."""

    @property
    def resolved_epsilon_ladder(self) -> EpsilonLadder:
        """``epsilon_ladder``, with null decided by the number of workers."""
        if self.epsilon_ladder is not None:
            return self.epsilon_ladder
        return "worker" if self.num_workers > 1 else "env"

    @property
    def resolved_final_prioritized_replay_beta(self) -> float:
        """``final_prioritized_replay_beta``, with null decided by ``prioritized_replay_beta``."""
        final = self.final_prioritized_replay_beta
        return self.prioritized_replay_beta if final is None else final

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then what could never be learned from."""
        yield from super().conflicts()
        for key in ("learning_starts", "train_batch_size"):
            if getattr(self, key) > self.buffer_size:
                message = f"{self.said(key)}, more than buffer_size holds: {self.buffer_size}"
                yield Conflict((key, "buffer_size"), message, "lower the one or raise the other")
