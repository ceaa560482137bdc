"""The keys that every agent has; where agents differ in the default, the agent's own file gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlexp.config.evaluation import EvaluationConfig
from rlexp.config.fields import (
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    FreeForm,
    KeyGroup,
    Positive,
    PositiveOrZero,
)
from rlexp.config.model import ModelConfig
from rlexp.config.structured_fields import ClipRewards, Schedule

LARGEST_SEED = 2**32 - 1


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

    custom_resources_per_worker: dict[str, PositiveOrZero] = Field(default_factory=dict)
    """Resources with names of the cluster's own that are reserved for a rollout worker."""

    num_threads_per_worker: Count | None = None
    """Threads that the forward pass of a rollout worker may use, where it has a process of its own. Null: 1."""

    num_cpus_for_driver: PositiveOrZero = 1.0
    """CPUs reserved for the process that learns and drives the workers."""

    num_gpus: PositiveOrZero = 0.0
    """GPUs reserved for the learner.

    0 for every agent. RLlib reserved 1 for APEX, which made its files fail on any machine without a GPU;
    here a file runs everywhere until it asks for more.
    """

    max_num_worker_restarts: CountOrZero = 100
    """Rollout workers that are replaced because they died, hung or failed, by one process of the trial.

    One that is lost ten times within five minutes is given up; the others go on. With ``num_workers: 0``
    none is replaced: ``max_failures`` says how often the trial starts again.
    """

    sample_timeout_s: Positive = 120.0
    """Seconds that a rollout worker has for ``sample_batch_size`` steps in a process of its own.

    One that needs longer hangs, in its env most likely: it is killed and replaced.
    """

    sample_batch_size: Count
    """Env steps that a worker takes in each of its environments per call: the length of a fragment."""

    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """Send fragments of ``sample_batch_size`` steps, or whole episodes, at least so many steps of them."""

    sample_async: bool = False
    """Let a worker play on while it prepares and sends the steps before; they may be a fragment older."""

    horizon: Count | None = None
    """Steps after which an episode is cut; a truncation, so the learner bootstraps. Null: the env's own limit."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the environment; any keys."""

    preprocessor_pref: Literal["deepmind", "rllib"] | None = "deepmind"
    """How Atari games are prepared: ``deepmind`` (Mnih et al. 2015: grey 84x84 frames, no-op starts, the maximum of two
    frames, a life as an episode), ``rllib`` (scaled and centred frames, nothing else), null (as the env gives them).

    Images of other envs are only scaled where ``model.dim`` gives a size, and never with null.
    """

    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """``MeanStdFilter`` standardises observations by the mean and deviation of all seen so far."""

    synchronize_filters: bool = True
    """Merge the workers' ``observation_filter`` after each iteration; else each worker has its own."""

    clip_rewards: ClipRewards = None
    """Learn from clipped rewards; reported returns stay whole.

    ``true``: their sign. A number x: limited to [-x, x]. A pair: limited to [low, high]. Null: the sign for Atari games
    under ``preprocessor_pref: deepmind``, else whole.
    """

    explore: bool = True
    """Explore. False: workers act greedily."""

    gamma: Fraction = 0.99
    """Discount of the reward one step later."""

    lr: Positive
    """Learning rate of Adam."""

    lr_schedule: Schedule = None
    """Learning rates over sampled steps: a list of [timestep, rate], linear between them, the last one kept.

    Null: ``lr`` all the time.
    """

    train_batch_size: Count
    """Transitions in one update of the learner."""

    timesteps_per_iteration: CountOrZero
    """Env steps, of all workers together, that must be sampled before an iteration ends; see ``min_iter_time_s``."""

    min_iter_time_s: PositiveOrZero
    """Seconds that an iteration lasts at least. It ends when this time and ``timesteps_per_iteration`` are over."""

    metrics_smoothing_episodes: Count = 100
    """Episodes, the newest ones, over which ``episode_reward_mean`` and its relatives are taken."""

    evaluation_interval: CountOrZero | None = None
    """Iterations between two evaluations; their results stand under ``evaluation/``. Null or 0: none."""

    evaluation_num_episodes: Count = 10
    """Episodes of an evaluation."""

    evaluation_timeout_s: Positive = 180.0
    """Seconds that an evaluation may take. One that takes longer ends with the episodes that have ended by then, and
    training goes on; an env without an end of its own needs ``evaluation_config.horizon``."""

    evaluation_config: EvaluationConfig = EvaluationConfig()
    """In what evaluation episodes differ from training ones."""

    monitor: bool = False
    """Record videos of evaluation episodes into the trial's folder."""

    seed: CountOrZero | None = Field(default=None, le=LARGEST_SEED)
    """Seed from which every env, worker, replay shard and the learner derive their own. Null: a fresh one, recorded."""

    model: ModelConfig = ModelConfig()
    """The network."""

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield what is known to be wrong between these keys and the environment ``env``."""
        yield from ()
