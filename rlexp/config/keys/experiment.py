"""Experiment: the checked content of one entry of a file; each agent has a class with its keys under ``config``.

Before it is its ``track`` section: which trackers record the trials, and under which names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from functools import reduce
from operator import getitem
from typing import Annotated, ClassVar, Final, Literal, Self, get_args

from pydantic import AfterValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.env_ids import ENV_ID, has_game_frames
from rlexp.config.keys.fields import (
    CONFLICT,
    RLEXP_ONLY,
    Conflict,
    Count,
    CountOrZero,
    KeptCheckpoints,
    KeyGroup,
    Positive,
    Whole,
    defaults_of,
    rule,
)
from rlexp.config.keys.metrics import AGENT_METRICS, EVALUATION_METRICS, is_known, is_own_metric, may_be_negative
from rlexp.config.keys.model import misfit
from rlexp.config.keys.search import MetricName, SearchConfig
from rlexp.config.keys.user_code import modules_of

TrackerName = Literal["wandb", "mlflow"]
TRACKERS: Final[tuple[TrackerName, ...]] = get_args(TrackerName)
"""The trackers; also the names of the extras that install them."""
DEFAULT_PROJECT: Final = "rlexp"
"""The project of wandb and the experiment of MLflow, if neither a file nor a variable names another one."""

_LONGEST_TAG: Final = 64
_NOT_IN_A_PROJECT: Final = re.compile(r"[/\\#?%:\x00-\x1f\x7f]")
_LONGEST_NAME: Final = 128

Text = Annotated[str, Field(min_length=1)]
Artifacts = Annotated[tuple[Literal["checkpoints", "videos"], ...], Field(strict=False)]


class WandbConfig(KeyGroup):
    """What is under ``track.wandb``."""

    project: Text | None = None
    """The project of the trials. Null: the variable WANDB_PROJECT, else ``rlexp``."""

    entity: Text | None = None
    """The user or team that the project belongs to. Null: WANDB_ENTITY, else the default of the account."""

    group: Text | None = None
    """The group of the trials. Null: WANDB_RUN_GROUP, else the name of the run of rlexp."""

    tags: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Tags beside the agent and the env."""

    mode: Literal["online", "offline"] | None = None
    """``offline``: nothing is sent; ``wandb sync`` sends it later. Null: WANDB_MODE, else ``online``."""

    artifacts: Artifacts = ()
    """What is sent beside rows and keys: ``checkpoints``, ``videos``, or both."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield names that wandb would refuse after the run has begun."""
        yield from super().conflicts()
        if self.project is not None and (len(self.project) > _LONGEST_NAME or _NOT_IN_A_PROJECT.search(self.project)):
            message = f"project must have at most {_LONGEST_NAME} characters, none of them / \\ # ? % :"
            yield Conflict(("project",), message, "an entity has a key of its own: track.wandb.entity")
        for tag in self.tags:
            if len(tag) > _LONGEST_TAG:
                yield Conflict(("tags",), f"tags: {tag[:20]}... has more than {_LONGEST_TAG} characters")


class MlflowConfig(KeyGroup):
    """What is under ``track.mlflow``."""

    experiment: Text | None = None
    """The experiment of the trials in MLflow. Null: the variable MLFLOW_EXPERIMENT_NAME, else ``rlexp``."""

    tags: dict[Text, str] = Field(default_factory=dict)
    """Tags, by name, beside rlexp's own (``rlexp.run``, ``rlexp.trial``, ``rlexp.agent``, ``rlexp.env``)."""

    artifacts: Artifacts = ()
    """What is sent beside rows and keys: ``checkpoints``, ``videos``, or both."""


class TrackConfig(KeyGroup):
    """What is under ``track:``. ``track: wandb`` is short for ``track: {to: [wandb]}``."""

    to: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()
    """The trackers that record the trials: ``wandb``, ``mlflow``, or both. A file that leaves this key out and has
    ``track.wandb`` or ``track.mlflow`` means these. Nothing is sent to others.

    No key says where the server is. The variables WANDB_BASE_URL and MLFLOW_TRACKING_URI do, so that a file that
    somebody else wrote cannot choose it.
    """

    wandb: WandbConfig = defaults_of(WandbConfig)
    """Options of Weights & Biases."""

    mlflow: MlflowConfig = defaults_of(MlflowConfig)
    """Options of MLflow."""


_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")
_STORAGE = re.compile(r"[a-z][a-z0-9]*://[^\s\x00-\x1f]+")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


FolderName = Annotated[
    str,
    rule(
        lambda name: _NAME.fullmatch(name) and name.strip(". ") and name.isprintable(),
        "must be the name of a folder: 1 to 100 characters, without slashes and invisible characters",
    ),
]
PathText = Annotated[str, rule(lambda text: "\0" not in text, "must be a path, which has no null character")]
Score = Annotated[
    str,
    rule(
        lambda score: is_known(score.removeprefix("min-")),
        "must be a metric of the results, with min- in front if less is better",
    ),
]
StorageUrl = Annotated[str, rule(_STORAGE.fullmatch, "must be a URL, such as s3://bucket/folder or file:///mnt/copies")]


def _is_env_name(env: str) -> bool:
    module, colon, name = env.rpartition(":")
    return bool(ENV_ID.fullmatch(name) and (not colon or _MODULE.fullmatch(module)))


EnvName = Annotated[str, rule(_is_env_name, "must be the id of an environment (CartPole-v1) or package.module:Class")]


def _as_written(number: float) -> float:
    return int(number) if float(number).is_integer() else number


def _stop_in_range(stop: dict[str, float]) -> dict[str, float]:
    """Refuse numbers that a counter or a clock has passed before the start; rewards may be any."""
    conflicts = tuple(
        Conflict((metric,), f"{metric} must be a number > 0, got {number:g}", "only rewards can be 0 or negative")
        for metric, number in stop.items()
        if number <= 0 and not may_be_negative(metric)
    )
    if conflicts:
        raise PydanticCustomError(CONFLICT, "numbers out of range", {"conflicts": conflicts})
    return stop


NUM_SEEDS: Final = "num_seeds"
"""The key beside ``config`` that means ``num_samples`` in a run, and ``search.num_seeds`` in a sweep."""
Number = Annotated[float, AfterValidator(_as_written), PlainSerializer(_as_written)]
"""A number that stays an integer if it was written as one."""


class Experiment(KeyGroup):
    """The keys beside ``config:`` of any agent."""

    AGENT: ClassVar[str]
    """The module and class that train it, imported when it is run."""
    POLICIES: ClassVar[str] = ""
    """The module and class that play its checkpoints, if that needs less than the agent."""

    name: FolderName
    """The name of the experiment: the key above it in its file, and its folder among the results."""

    run: str
    """The agent, in any case."""

    env: EnvName
    """The environment: a Gymnasium id, ``package.module:Class`` (an env or a vector env), an id that an installed
    package brings by an entry point of the group ``rlexp.envs``, or ``envpool:TASK``."""

    stop: Annotated[dict[MetricName, Number], AfterValidator(_stop_in_range)] = Field(default_factory=dict)
    """Metrics and numbers. A trial stops when the first metric reaches its number. Empty: it runs until interrupted.

    Rewards can be any number; steps, episodes, iterations and seconds must be > 0. An iteration ends as soon as
    ``timesteps_total``, ``episodes_total``, ``time_total_s``, ``num_updates`` (updates of the learner),
    ``info/num_steps_sampled``, ``info/num_steps_trained`` or ``info/num_weight_syncs`` reaches its number: a trial ends
    at most one step of its optimizer beyond it. Rewards and other metrics are checked at the end of each iteration.
    """

    num_samples: Count = 1
    """Number of trials of each variant, with different seeds: ``num_seeds`` is the usual name. Beside ``search``,
    ``num_samples`` is the number of configurations to try, and ``num_seeds`` the trials of each."""

    checkpoint_freq: CountOrZero = 0
    """Iterations between two checkpoints. 0: no checkpoint while a trial runs."""

    checkpoint_at_end: bool = True
    """Save a checkpoint when a trial stops. RLlib's default was false, so that trained policies were lost."""

    checkpoint_evaluation_episodes: Annotated[CountOrZero, RLEXP_ONLY] = 20
    """Episodes that are played with the weights of a checkpoint before it is written, as ``evaluation_config`` says.

    A trial stops at a reward of training (``episode_reward_mean``, ``_min`` or ``_max``) only if the episodes reach it
    too; else training continues. They take at most a twentieth of a trial's time, beside the first ones for a reward in
    ``stop``; a checkpoint without time left gets none. The best checkpoint, which ``rlexp evaluate`` plays, has the
    highest mean reward: of its episodes, or of training if it was not played. 0: no episodes, and training rewards
    decide, as in RLlib.
    """

    keep_checkpoints_num: KeptCheckpoints = "auto"
    """Number of checkpoints that a trial keeps, the best by ``checkpoint_score_attr``, and the newest.

    Auto: the three newest, and the one that ``rlexp evaluate`` plays. Trials of a population copy each other's
        checkpoints, so they keep all. Null: all, as in RLlib.
    """

    checkpoint_score_attr: Score = "training_iteration"
    """The metric that decides which checkpoint is best: the highest value, or with ``min-`` in front the lowest."""

    storage: Annotated[StorageUrl | None, RLEXP_ONLY] = None
    """URL of a second place for checkpoints, such as ``s3://bucket/folder``: any that ``pyarrow.fs`` opens (s3, gs,
    hdfs, file). Each checkpoint is copied there while training continues. If the run has none left, ``rlexp resume``
    and ``rlexp evaluate`` fetch it from there. They do so only from a storage with which you have trained or that you
    name: ``--allow-storage URL``. Null: no copies."""

    time_budget_s: Positive | None = None
    """Seconds after which all trials of the experiment save a checkpoint and stop. Null: no limit."""

    restore: PathText | None = None
    """Folder of a checkpoint to start from: its weights, optimizer and counters. Null: start from the beginning."""

    max_failures: Annotated[Whole, Field(ge=-1)] = 0
    """How often a failed trial is restarted from its last checkpoint. -1: always."""

    reuse_actors: bool = True
    """Let a process train one trial after another, which saves the seconds of starting a new one. False: each trial has
    a new process, as needed by envs that keep state in their module."""

    search: Annotated[SearchConfig, RLEXP_ONLY] = defaults_of(SearchConfig)
    """What ``rlexp sweep`` searches, and how. An experiment with this key is a sweep."""

    track: Annotated[TrackConfig, RLEXP_ONLY] = defaults_of(TrackConfig)
    """Which trackers record the trials beside the files of the run: ``wandb``, ``mlflow``, a list of both, or a mapping
    with their options. ``--track`` on the command line has priority."""

    config: CommonConfig
    """The keys of the agent."""

    @property
    def essence(self) -> str:
        """Text of the keys that have an effect; experiments with equal texts train the same."""
        effective = self.model_dump(mode="json", by_alias=True)
        for key, _ in self.config.ineffective_keys():
            *groups, name = key.split(".")
            reduce(getitem, groups, effective["config"]).pop(name, None)  # a key may have two reasons
        return json.dumps(effective)

    @property
    def is_sweep(self) -> bool:
        """Whether the file has a ``search`` section."""
        return "search" in self.model_fields_set

    @property
    def named_modules(self) -> tuple[str, ...]:
        """The user's modules that it imports: the module of its env's class, and of the parts under ``config``."""
        return tuple(dict.fromkeys((*modules_of(self.env), *(part.module for part in self.config.user_parts()))))

    def with_seed(self, seed: int) -> Self:
        """Return the experiment with another seed."""
        return self.model_copy(update={"config": self.config.model_copy(update={"seed": seed})})

    def conflicts(self) -> Iterator[Conflict]:
        """Yield evaluation metrics without evaluations, and schedulers that do not know when to begin."""
        yield from super().conflicts()
        absent = set(AGENT_METRICS).difference(self.config.AGENT_COLUMNS)
        yield from self._never_reported(absent, f"{self.run} has no such metric", "name another metric")
        own = {metric for metric in self._named_metrics if is_own_metric(metric)}
        if not self.config.callbacks:
            hint = "set config.callbacks to a class that reports it"
            yield from self._never_reported(own, "there are no callbacks", hint)
        if not self.config.evaluation_interval:
            of_evaluations = {metric for metric in own if metric.startswith("evaluation/") and self.config.callbacks}
            hint = "set config.evaluation_interval to the iterations between two evaluations"
            absent = of_evaluations.union(EVALUATION_METRICS)
            yield from self._never_reported(absent, "there are no evaluations", hint)
        yield from self.config.env_conflicts(self.env)
        yield from self._unfit_filters()
        yield from self._useless_intervals()

    @property
    def _named_metrics(self) -> tuple[str, ...]:
        """The metrics that its keys name."""
        return (*self.stop, self.checkpoint_score_attr.removeprefix("min-"), self.search.metric)

    def _useless_intervals(self) -> Iterator[Conflict]:
        """Yield that the scheduler cannot know when to compare trials, or would never do so."""
        search, options = self.search, self.search.scheduler_options
        unit, named = search.time_attr, f"search.{search.scheduler}.{options.INTERVAL_KEY}"
        limit = self.stop.get(unit)
        interval = options.interval(limit)
        if limit is None and options.NEEDS_STOP:
            message = f"search.scheduler is {search.scheduler}, but stop.{unit} is not given"
            yield Conflict(("search.scheduler",), message, "set it; the rungs are counted back from it")
        elif interval is None:
            message = f"search.scheduler is {search.scheduler}, but neither stop.{unit} nor {named} is given"
            hint = "set one of them; it is the time after which trials are compared"
            yield Conflict(("search.scheduler",), message, hint)
        elif limit is not None and interval >= limit > 1:
            message = f"{named} is {interval:g}, but trials end at stop.{unit}: {limit:g}, before any are compared"
            yield Conflict((named, "search.scheduler"), message, f"set a {options.INTERVAL_KEY} below it")

    def _unfit_filters(self) -> Iterator[Conflict]:
        """Yield convolutions that do not fit Atari frames; the size of other images is known when a run begins."""
        config, model = self.config, self.config.model
        is_scaled_only = config.effective_preprocessor_pref is not None and not config.env_wrappers
        scaled = is_scaled_only and has_game_frames(self.env, config.env_config) and model.custom_model is None
        found = misfit(model.atari_dim, model.atari_dim, model.conv_filters) if scaled and model.conv_filters else None
        if found is not None:
            message, hint = found
            yield Conflict(("config.model.conv_filters", "config.model.dim"), f"config.{message}", hint)

    def _never_reported(self, absent: Set[str], reason: str, hint: str) -> Iterator[Conflict]:
        """Yield the keys that name one of the ``absent`` metrics."""
        for metric in sorted(self.stop.keys() & absent):
            yield Conflict(("stop",), f"stop.{metric} is never reported, because {reason}", hint)
        named = {"checkpoint_score_attr": self.checkpoint_score_attr, "search.metric": self.search.metric}
        for key, metric in named.items():
            if metric.removeprefix("min-") in absent:
                yield Conflict((key,), f"{key} {metric} is never reported, because {reason}", hint)
