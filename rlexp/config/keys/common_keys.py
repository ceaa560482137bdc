"""The keys that every agent has; if agents differ in the default, the agent's own file gives it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    ClipRewards,
    Count,
    CountOrZero,
    Expects,
    Fraction,
    FragmentLength,
    FreeForm,
    KeyGroup,
    Positive,
    PositiveOrZero,
    Schedule,
    defaults_of,
)
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.user_code import UserClass, UserClasses
from rlexp.schedules import LARGEST_SEED


def _as_list(value: Any) -> Any:
    """Return a list of one class, which a file may give without the list."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | dict | UserClass) else value


Classes = Annotated[
    UserClasses,
    BeforeValidator(_as_list, json_schema_input_type=UserClass | UserClasses | None),
    Expects(f"{UserClass.EXPECTED}, or a list of them"),
]


class EvaluationConfig(KeyGroup):
    """Changes for evaluation episodes."""

    explore: bool = False
    """Whether evaluation episodes explore, with epsilon ``exploration_final_eps``. False: greedy actions."""

    exploration_final_eps: Fraction | None = None
    """Epsilon of evaluation episodes that explore. Null: the same as in training."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the evaluation's environments. They override the training's."""

    horizon: Annotated[Count | None, RLEXP_ONLY] = None
    """Steps after which an evaluation episode is truncated. Null: the same as in training."""


class CommonKeys(KeyGroup):
    """The keys of every agent."""

    num_workers: CountOrZero
    """Number of rollout workers, each a process of its own. 0: the learner's process steps the environments."""

    min_num_workers: Annotated[CountOrZero | None, RLEXP_ONLY] = None
    """Number of rollout workers that a trial waits for. Null: all.

    A trial begins when there is room for so many. The others join it when there is room for them too, such as on spot
    machines of a cluster. They are not part of the trial's reservation, so other trials may come first.
    """

    num_envs_per_worker: Count = 1
    """Number of environments that a worker steps together, with one forward pass for all of them."""

    num_cpus_per_worker: PositiveOrZero = 1.0
    """CPUs reserved for each rollout worker. Several workers share a CPU if it is a fraction."""

    num_gpus_per_worker: PositiveOrZero = 0.0
    """GPUs reserved for each rollout worker. Must be 0: the workers of rlexp's own agents use none."""

    custom_resources_per_worker: dict[str, PositiveOrZero] = Field(default_factory=dict)
    """Custom resources of a Ray cluster reserved for each rollout worker: names and amounts."""

    placement: Annotated[Literal["PACK", "SPREAD"], RLEXP_ONLY] = "PACK"
    """How the workers of a trial are placed on the nodes of a cluster. ``PACK``: on as few nodes as possible, so that
    less is sent between them. ``SPREAD``: on as many as possible, so that fewer workers are lost with a node. With
    either, several may be on the same node."""

    num_threads_per_worker: Annotated[Count | None, RLEXP_ONLY] = None
    """Threads for the forward pass of a rollout worker that has its own process. Null: 1."""

    num_cpus_for_driver: PositiveOrZero = 1.0
    """CPUs reserved for the process of the learner, which also drives the workers.

    APEX's learner also uses the CPUs of its workers while they wait for it.
    """

    num_gpus: PositiveOrZero = 0.0
    """GPUs reserved for the learner, at most 1; for several learners all together, one each. A fraction lets several
    trials share a GPU.

    The default is 0 for every agent. RLlib's was 1 for APEX, so its files failed on machines without a GPU.
    """

    max_num_worker_restarts: CountOrZero = 100
    """How many rollout workers are replaced because they died, hung or failed.

    A worker that fails ten times within five minutes is not replaced again; the others continue. The count starts anew
    when the trial restarts. With ``num_workers: 0`` there is no worker to replace, and ``max_failures`` applies.
    """

    sample_timeout_s: Annotated[Positive, RLEXP_ONLY] = 120.0
    """Seconds that a rollout worker with its own process has for ``sample_batch_size`` steps.

    A worker that needs longer counts as hung, most likely in its env: it is killed and replaced. If the process that
    evaluates checkpoints is silent for so long, it is killed, and no more checkpoints are evaluated.
    """

    sample_batch_size: FragmentLength
    """Env steps that a worker samples from each of its environments per call: the length of a fragment.

    ``auto`` (agents without replay): ``train_batch_size`` divided by the number of all environments, rounded up.
    """

    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """``truncate_episodes``: workers send fragments of ``sample_batch_size`` steps. ``complete_episodes``: whole
    episodes, with at least as many steps together."""

    sample_async: bool = False
    """Let a worker continue sampling while it prepares and sends the last fragment. Its weights may then be one
    fragment older."""

    horizon: Count | None = None
    """Steps after which an episode is truncated; the learner bootstraps from its last state. Null: the env's limit."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the environment."""

    env_wrappers: Annotated[UserClasses, RLEXP_ONLY] = ()
    """Wrappers around each environment, the innermost first: ``package.module:Class``, or ``{package.module:Class:
    {argument: value}}``. Classes derive from ``gymnasium.Wrapper``; Gymnasium's own are in ``gymnasium.wrappers``.

    They wrap the env after its limit of steps is applied, and before its images and actions are prepared. An Atari game
    with ``preprocessor_pref: deepmind`` is wrapped after its preparation: a step is four frames, an episode is a life.
    """

    action_mask: Annotated[Literal["auto"] | None, RLEXP_ONLY] = "auto"
    """Whether the agent obeys an env that says which actions it allows now. ``auto``: if the env gives ``action_mask``
    in a Dict observation or in ``info``, or has a method ``action_masks``; then no other action is taken or
    bootstrapped from. Null: no; a mask in the observation is a part of it."""

    preprocessor_pref: Literal["deepmind", "rllib"] | None = "deepmind"
    """Preprocessing of Atari games. ``deepmind``: grey 84x84 frames, no-op starts, the maximum of two frames, one life
    per episode (Mnih et al. 2015). ``rllib``: scaled and centred frames, nothing else. Null: none.

    Images of other envs are scaled only if ``model.dim`` gives a size, and never with null. A
    ``model.custom_preprocessor`` replaces all this.
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
    """Learning rate of Adam; in ARS, size of a step."""

    lr_schedule: Schedule = None
    """Learning rates over sampled steps: a list of [timestep, rate]. Linear between them, constant after the last.

    Null: constant ``lr``.
    """

    adam_epsilon: Positive = 1e-8
    """Adam's epsilon, added to the denominator."""

    grad_norm_clipping: Positive | None
    """Maximum norm of the gradient of all parameters together. Null: no clipping."""

    train_batch_size: Count
    """Number of transitions in one update of the learner."""

    timesteps_per_iteration: CountOrZero | None
    """Env steps that all workers together must sample in an iteration. Null or 0: no minimum.

    An iteration ends when ``min_iter_time_s`` has passed as well. Without both, it ends after the first step of the
    optimizer that sampled or trained something; without replay, this is a train batch. It ends earlier if a counter
    or the mean return reaches its value in ``stop``. In a sweep, it also ends when the trial reaches the next time of a
    comparison with others, such as a rung.

    A short run of APEX whose file gives neither this key nor ``min_iter_time_s``, and nothing that counts iterations,
    has iterations of a twentieth of its ``stop``; a notice names them.
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
    """Seconds that an evaluation may take. A longer one ends with the episodes that have ended, and training continues.
    An env whose episodes never end needs ``evaluation_config.horizon``."""

    evaluation_config: EvaluationConfig = defaults_of(EvaluationConfig)
    """Changes for evaluation episodes."""

    callbacks: Classes = ()
    """Classes of your own with hooks that are called at the start, step and end of episodes, and after iterations and
    checkpoints: ``package.module:Class``, or ``{package.module:Class: {argument: value}}``, or a list of these.

    Each derives from ``rlexp.callbacks.Callbacks``. Their own metrics are in the results as
    ``custom_metrics/NAME_mean``, ``_min`` and ``_max``; keys such as ``stop`` can name them.
    """

    monitor: bool = False
    """Record videos of evaluation episodes in the folder of the trial."""

    seed: CountOrZero | None = Field(default=None, le=LARGEST_SEED)
    """Seed from which the seeds of all envs, workers, replay shards and the learner are derived. Null: a random one,
    which is recorded."""

    model: ModelConfig = defaults_of(ModelConfig)
    """The neural network."""
