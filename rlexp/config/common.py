"""The keys that every agent has; where agents differ in the default, the agent's own file gives it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlexp.config.fields import Count, CountOrZero, Fraction, FreeForm, KeyGroup, LayerSizes, Positive, PositiveOrZero

LARGEST_SEED = 2**32 - 1


class ModelConfig(KeyGroup):
    """The network between the observation and an agent's heads."""

    fcnet_hiddens: LayerSizes = (256, 256)
    """Sizes of the fully connected layers in front of an agent's heads; ``[]`` for none."""

    fcnet_activation: Literal["tanh", "relu", "elu", "swish", "linear"] = "tanh"
    """Activation after each of the ``fcnet_hiddens`` layers."""


class CommonConfig(KeyGroup):
    """What is under ``config:`` whatever the agent."""

    num_workers: CountOrZero
    """Rollout workers, each a process of its own. 0: the learner's process steps the environments itself."""

    num_envs_per_worker: Count = 1
    """Environments that a worker steps in lock-step, with one forward pass for all of them."""

    num_cpus_per_worker: PositiveOrZero = 1.0
    """CPUs reserved for a rollout worker; a fraction lets several workers share one."""

    num_gpus_per_worker: PositiveOrZero = 0.0
    """GPUs reserved for a rollout worker; a fraction lets several workers share one."""

    num_cpus_for_driver: PositiveOrZero = 1.0
    """CPUs reserved for the process that learns and drives the workers."""

    num_gpus: PositiveOrZero = 0.0
    """GPUs reserved for the learner.

    0 for every agent. RLlib reserved 1 for APEX, which made its files fail on any machine without a GPU;
    here a file runs everywhere until it asks for more.
    """

    sample_batch_size: Count
    """Env steps that a worker takes in each of its environments per call: the length of a fragment."""

    horizon: Count | None = None
    """Steps after which an episode is cut; a truncation, so the learner bootstraps. Null: the env's own limit."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the environment; any keys."""

    clip_rewards: bool | None = None
    """Learn from the sign of each reward (reported returns stay whole). Null: true for Atari games, else false."""

    gamma: Fraction = 0.99
    """Discount of the reward one step later."""

    lr: Positive
    """Learning rate of Adam."""

    train_batch_size: Count
    """Transitions in one update of the learner."""

    timesteps_per_iteration: CountOrZero
    """Env steps, of all workers together, that must be sampled before an iteration ends; see ``min_iter_time_s``."""

    min_iter_time_s: PositiveOrZero
    """Seconds that an iteration lasts at least. It ends when this time and ``timesteps_per_iteration`` are over."""

    metrics_smoothing_episodes: Count = 100
    """Episodes, the newest ones, over which ``episode_reward_mean`` and its relatives are taken."""

    seed: CountOrZero | None = Field(default=None, le=LARGEST_SEED)
    """Seed from which every env, worker, replay shard and the learner derive their own. Null: a fresh one, recorded."""

    model: ModelConfig = ModelConfig()
    """The network."""
