"""The keys that every agent has; where agents differ in the default, the agent's own file gives it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlexp.config.keys.capabilities import ActionScaling, Caution, FactLine, PlayableActions, ReplayNeeds
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    ClipRewards,
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    FreeForm,
    KeyGroup,
    Positive,
    PositiveOrZero,
    Schedule,
)
from rlexp.config.keys.model import ModelConfig

LARGEST_SEED = 2**32 - 1


class EvaluationConfig(KeyGroup):
    """What is different in evaluation episodes."""

    explore: bool = False
    """Whether evaluation episodes explore, with epsilon ``exploration_final_eps``. False: greedy actions."""

    exploration_final_eps: Fraction | None = None
    """Epsilon of evaluation episodes that explore. Null: that of the training."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the environments of the evaluation. They override those of the training."""

    horizon: Annotated[Count | None, RLEXP_ONLY] = None
    """Steps after which an evaluation episode is cut. Null: as in the training."""


class CommonConfig(KeyGroup):
    """What is under ``config:`` whatever the agent."""

    MOST_GPUS: ClassVar[float] = math.inf
    """GPUs that the agent's learner can use."""
    WORKERS_USE_GPUS: ClassVar[bool] = True
    """Whether the agent's rollout workers can use GPUs."""
    ROLLOUT_KEYS: ClassVar[frozenset[str]] = frozenset(
        {"num_workers", "num_envs_per_worker", "sample_batch_size", "batch_mode", "sample_async", "horizon"}
        | {"observation_filter", "synchronize_filters", "clip_rewards", "gamma", "explore", "seed"}
    )
    """The keys that decide what a worker keeps between two fragments: it continues only with the same values."""
    AGENT_COLUMNS: ClassVar[tuple[str, ...]] = ()
    """Metrics of the agent that ``progress.csv`` has columns for, whether the first row has them or not."""
    DISPLAYED: ClassVar[tuple[FactLine, ...]] = (
        FactLine(
            "speed",
            (
                "sampled {info/sample_throughput:count}/s",
                "trained {info/train_throughput:count}/s",
                "{info/trained_per_sampled:ratio} trained per sampled",
            ),
        ),
    )
    """What the live display shows of a trial beside its progress, reward and bottleneck."""

    SHARED_WITH_OPTIMIZER: ClassVar[tuple[str, ...]] = ()
    """Keys that files may also have under ``optimizer:``, where RLlib copied them."""
    KEPT_BY_PBT: ClassVar[tuple[str, ...]] = (
        *("env_config", "model", "observation_filter", "preprocessor_pref", "optimizer"),
        *("num_workers", "num_gpus", "num_cpus_for_driver", "num_cpus_per_worker"),
        *("num_gpus_per_worker", "custom_resources_per_worker"),
    )
    """Keys that pbt cannot change: a trial that copies another one keeps its own network and processes."""

    num_workers: CountOrZero
    """Number of rollout workers, each a process of its own. 0: the learner's process steps the environments."""

    num_envs_per_worker: Count = 1
    """Number of environments that a worker steps together, with one forward pass for all of them."""

    num_cpus_per_worker: PositiveOrZero = 1.0
    """CPUs reserved for each rollout worker. Several workers share a CPU if it is a fraction."""

    num_gpus_per_worker: PositiveOrZero = 0.0
    """GPUs reserved for each rollout worker. Must be 0 for DQN and APEX, whose workers use none."""

    custom_resources_per_worker: dict[str, PositiveOrZero] = Field(default_factory=dict)
    """Custom resources of a Ray cluster reserved for each rollout worker: names and amounts."""

    num_threads_per_worker: Annotated[Count | None, RLEXP_ONLY] = None
    """Threads for the forward pass of a rollout worker that has its own process. Null: 1."""

    num_cpus_for_driver: PositiveOrZero = 1.0
    """CPUs reserved for the process of the learner, which also drives the workers."""

    num_gpus: PositiveOrZero = 0.0
    """GPUs reserved for the learner, at most 1 for DQN and APEX. Several trials share a GPU if it is a fraction.

    The default is 0 for every agent. RLlib's was 1 for APEX, so its files failed on machines without a GPU.
    """

    max_num_worker_restarts: CountOrZero = 100
    """How many rollout workers are replaced because they died, hung or failed.

    A worker that fails ten times within five minutes is not replaced again; the others continue. The count starts
    anew when the trial restarts. With ``num_workers: 0`` there is none to replace, and ``max_failures`` applies.
    """

    sample_timeout_s: Annotated[Positive, RLEXP_ONLY] = 120.0
    """Seconds that a rollout worker with its own process has for ``sample_batch_size`` steps.

    A worker that needs longer counts as hung, most likely in its env: it is killed and replaced.
    """

    sample_batch_size: Count
    """Env steps that a worker samples from each of its environments per call: the length of a fragment."""

    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """``truncate_episodes``: workers send fragments of ``sample_batch_size`` steps. ``complete_episodes``: whole
    episodes, with at least as many steps together."""

    sample_async: bool = False
    """Let a worker continue sampling while it prepares and sends the last fragment. Its weights may then be one
    fragment older."""

    horizon: Count | None = None
    """Steps after which an episode is cut. This is a truncation, so the learner bootstraps. Null: the env's limit."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the environment."""

    preprocessor_pref: Literal["deepmind", "rllib"] | None = "deepmind"
    """Preprocessing of Atari games. ``deepmind``: grey 84x84 frames, no-op starts, the maximum of two frames, one life
    per episode (Mnih et al. 2015). ``rllib``: scaled and centred frames, nothing else. Null: none.

    Images of other envs are only scaled where ``model.dim`` gives a size, and never with null.
    """

    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """``MeanStdFilter``: standardise observations by the running mean and standard deviation."""

    synchronize_filters: bool = True
    """Merge the ``observation_filter`` of all workers after each iteration. False: each worker keeps its own."""

    clip_rewards: ClipRewards = None
    """Learn from clipped rewards. Reported returns are never clipped.

    ``true``: the sign of the reward. A number x: clip to [-x, x]. A pair: clip to [low, high]. Null: the sign for Atari
    games with ``preprocessor_pref: deepmind``, else not clipped.
    """

    explore: bool = True
    """Whether workers explore. False: they act greedily."""

    gamma: Fraction = 0.99
    """Discount factor of rewards, per step."""

    lr: Positive
    """Learning rate of Adam."""

    lr_schedule: Schedule = None
    """Learning rates over sampled steps: a list of [timestep, rate]. Linear between them, constant after the last.

    Null: constant ``lr``.
    """

    train_batch_size: Count
    """Number of transitions in one update of the learner."""

    timesteps_per_iteration: CountOrZero | None
    """Env steps that all workers together must sample in an iteration. Null or 0: no minimum.

    An iteration ends when ``min_iter_time_s`` has passed as well. Without both, it ends after the first step of the
    optimizer that sampled or trained something. It ends earlier where a counter reaches its value in ``stop``, and in a
    sweep where the trial reaches the next time at which it is compared with others, such as a rung.
    """

    min_iter_time_s: PositiveOrZero | None
    """Minimum duration of an iteration in seconds. Null or 0: no minimum.

    The value of ``stop`` and the rungs of a sweep end it earlier; see ``timesteps_per_iteration``.
    """

    metrics_smoothing_episodes: Count = 100
    """Number of newest episodes over which ``episode_reward_mean`` and the like are computed."""

    evaluation_interval: CountOrZero | None = None
    """Iterations between two evaluations, reported under ``evaluation/``. Null or 0: no evaluation."""

    evaluation_num_episodes: Count = 10
    """Number of episodes per evaluation."""

    evaluation_timeout_s: Positive = 180.0
    """Seconds that an evaluation may take. One that takes longer ends with the episodes that have ended by then, and
    training goes on; an env without an end of its own needs ``evaluation_config.horizon``."""

    evaluation_config: EvaluationConfig = EvaluationConfig()
    """What is different in evaluation episodes."""

    monitor: bool = False
    """Record videos of evaluation episodes in the folder of the trial."""

    seed: CountOrZero | None = Field(default=None, le=LARGEST_SEED)
    """Seed from which those of all envs, workers, replay shards and of the learner are derived. Null: a random one,
    which is recorded."""

    model: ModelConfig = ModelConfig()
    """The neural network."""

    @property
    def replay(self) -> ReplayNeeds | None:
        """What its replay needs; None for an agent without replay."""
        return None

    @property
    def playable_actions(self) -> PlayableActions | None:
        """The action spaces that the algorithm can play; None: any."""
        return None

    @property
    def bins_per_action(self) -> int | None:
        """Into how many values each dimension of continuous actions is divided; None: they stay continuous."""
        return None

    @property
    def continuous_actions(self) -> ActionScaling | None:
        """How the env gets continuous actions; None: as the policy chose them."""
        return None

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        """Yield each key that has no effect beside the others, and the reason; a subclass adds to its parent's."""
        if self.lr_schedule is not None:
            yield "lr", "lr_schedule is given"

    def cautions(self) -> Iterator[Caution]:
        """Yield what a user may not have meant."""
        yield from ()

    def with_at_most(self, cpus: int) -> dict[str, int]:
        """Return the keys, apart from workers, that use more processes than ``cpus``, with values that do not."""
        return {}

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield what is known to be wrong between these keys and the environment ``env``."""
        yield from ()

    def unused_resources(self) -> Iterator[Conflict]:
        """Yield resources that would be reserved, but that the agent does not use."""
        if self.num_gpus > self.MOST_GPUS:
            message = f"num_gpus: {self.num_gpus:g} reserves {self.num_gpus:g} GPUs, but the learner uses"
            hint = f"write num_gpus: {self.MOST_GPUS:g}; --fit lowers it for you"
            yield Conflict(("num_gpus",), f"{message} {self.MOST_GPUS:g}", hint)
        if self.num_gpus_per_worker and not self.WORKERS_USE_GPUS:
            message = f"num_gpus_per_worker: {self.num_gpus_per_worker:g} reserves GPUs, but workers use none"
            hint = "write num_gpus_per_worker: 0; --fit lowers it for you"
            yield Conflict(("num_gpus_per_worker",), message, hint)
