"""DQN's keys and defaults: those of RLlib 0.5.3 unless a docstring says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlexp.config.common import CommonConfig
from rlexp.config.env_ids import has_continuous_actions
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
    Whole,
)

EpsilonLadder = Literal["worker", "env"]

MOST_CHECKPOINTED_BYTES = 256 * 10**6
"""Replay up to this size is written into checkpoints where ``checkpoint_replay`` does not say."""


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

    exploration_initial_eps: Fraction = 1.0
    """Epsilon at the start of its schedule."""

    exploration_final_eps: Fraction = 0.02
    """Epsilon at the end of its schedule."""

    exploration_fraction: Fraction = 0.1
    """Part of ``schedule_max_timesteps`` over which epsilon moves linearly from its first to its last value."""

    epsilon_timesteps: CountOrZero | None = None
    """Sampled steps over which epsilon moves linearly. Null: ``exploration_fraction`` of ``schedule_max_timesteps``."""

    exploration_warmup_timesteps: CountOrZero = 0
    """Sampled steps for which epsilon keeps its first value before it moves."""

    schedule_max_timesteps: Count = 100_000
    """The steps of which ``exploration_fraction`` (sampled) and ``beta_annealing_fraction`` (trained) are parts."""

    soft_q: bool = False
    """Draw actions with the probabilities softmax(Q / ``softmax_temp``) instead of epsilon-greedily."""

    softmax_temp: Positive = 1.0
    """Temperature of ``soft_q``: towards 0 it acts greedily, the higher the more evenly it draws."""

    discretize_actions: Annotated[Whole, Field(ge=2)] | None = None
    """Actions per dimension that stand for an env's continuous ones, evenly spread over their range, both
    bounds included. Null: the env must have discrete actions."""

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

    prioritized_replay_beta_annealing_timesteps: CountOrZero | None = None
    """Trained steps over which beta moves. Null: ``beta_annealing_fraction`` of ``schedule_max_timesteps``."""

    prioritized_replay_eps: Positive = 1e-6
    """Added to each absolute TD error, so that no transition's priority is 0."""

    compress_observations: bool = True
    """Keep observations of 1 kB or more, as images are, compressed (LZ4) in replay; lossless. Smaller ones are kept as
    they are."""

    checkpoint_replay: bool | None = None
    """Write what replay holds into checkpoints: a run that goes on from one need not fill replay again.

    With ``num_workers: 0`` it then does, bit by bit, what it would have done without the break, where the environment
    keeps its state in plain Python and NumPy values. Null: where replay, once it is full, takes no more than 256 MB,
    as far as what it holds tells.
    """

    training_intensity: Positive | None = None
    """Steps trained per step sampled, held by pausing whichever side runs ahead. Null: both run freely in APEX; DQN
    trains one batch for each round of fragments."""

    double_q: bool = True
    """Choose the next action with the online network, value it with the target network (van Hasselt et al. 2016)."""

    dueling: bool = True
    """Split the head in a state value and centred advantages (Wang et al. 2016)."""

    hiddens: LayerSizes = (256,)
    """Sizes of the layers in each head, behind the model; ``[]`` for none."""

    noisy: bool = False
    """Explore by noise in the layers of the heads (Fortunato et al. 2018); every epsilon is 0 then."""

    sigma0: Positive = 0.5
    """Deviation of the ``noisy`` layers' noise at the start, before it is divided by the root of their width."""

    parameter_noise: bool = False
    """Explore by noise on all of the network's weights as well, as much as epsilon does (Plappert et al. 2018).

    The noise's deviation adapts until it changes what is done about as much as epsilon's random actions do, which are
    still taken. The noise is drawn afresh with each episode of a worker's first environment, for all of them.
    """

    parameter_noise_initial_stddev: Positive = 1.0
    """Deviation of ``parameter_noise`` before it adapts."""

    num_atoms: Count = 1
    """Atoms of the distribution of returns that is learned (Bellemare et al. 2017). 1: its mean only, as ever."""

    v_min: float = -10.0
    """The lowest atom of ``num_atoms``: returns below count as this."""

    v_max: float = 10.0
    """The highest atom of ``num_atoms``: returns above count as this."""

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
    def evaluation_epsilon(self) -> float:
        """Epsilon of evaluation episodes, where they explore."""
        epsilon = self.evaluation_config.exploration_final_eps
        return self.exploration_final_eps if epsilon is None else epsilon

    @property
    def resolved_epsilon_timesteps(self) -> int:
        """``epsilon_timesteps``, with null decided by ``exploration_fraction``."""
        given = self.epsilon_timesteps
        return int(self.exploration_fraction * self.schedule_max_timesteps) if given is None else given

    @property
    def resolved_beta_annealing_timesteps(self) -> int:
        """``prioritized_replay_beta_annealing_timesteps``, with null decided by ``beta_annealing_fraction``."""
        given = self.prioritized_replay_beta_annealing_timesteps
        return int(self.beta_annealing_fraction * self.schedule_max_timesteps) if given is None else given

    @property
    def resolved_final_prioritized_replay_beta(self) -> float:
        """``final_prioritized_replay_beta``, with null decided by ``prioritized_replay_beta``."""
        final = self.final_prioritized_replay_beta
        return self.prioritized_replay_beta if final is None else final

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield continuous actions that are not discretized: a Q-network has a value for each of a finite number."""
        if self.discretize_actions is None and has_continuous_actions(env, self.env_config):
            message = f"env {env} has continuous actions; DQN and APEX need discrete ones"
            yield Conflict(("env",), message, "discretize_actions: 5 chooses among 5 values per dimension")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then what could never be learned from, and two explorations at once."""
        yield from super().conflicts()
        for key in ("learning_starts", "train_batch_size"):
            if getattr(self, key) > self.buffer_size:
                message = f"{self.said(key)}, more than buffer_size holds: {self.buffer_size}"
                yield Conflict((key, "buffer_size"), message, "lower the one or raise the other")
        for key in ("noisy", "soft_q"):
            if self.parameter_noise and getattr(self, key):
                message = f"parameter_noise and {key} are both true: each explores in its own way"
                yield Conflict(("parameter_noise", key), message, "choose one of them")
        if self.v_min >= self.v_max:
            yield Conflict(("v_min", "v_max"), f"{self.said('v_min')}, not below v_max: {self.v_max}")
