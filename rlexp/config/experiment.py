"""Experiment: what one entry of a file says, checked; a union over ``run``, the agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from rlexp.config.apex import ApexConfig
from rlexp.config.common import CommonConfig
from rlexp.config.convolutions import misfit
from rlexp.config.dqn import DQNConfig
from rlexp.config.env_ids import is_atari
from rlexp.config.fields import RULE, Conflict, Count, CountOrZero, KeyGroup, Positive, Whole
from rlexp.config.metric_names import EVALUATION_METRICS, KNOWN_METRICS
from rlexp.config.ppo import PPOConfig
from rlexp.config.search import SearchConfig, known_metric

_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")
_ENV_ID = re.compile(r"([\w-]+/)?\w[\w.-]*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def _folder_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name.strip(". ") == "" or not name.isprintable():
        raise PydanticCustomError(
            RULE, "becomes a folder: 1 to 100 characters, none of them a slash or an invisible character"
        )
    return name


def _env_name(env: str) -> str:
    module, colon, name = env.rpartition(":")
    if not _ENV_ID.fullmatch(name) or (colon and not _MODULE.fullmatch(module)):
        raise PydanticCustomError(RULE, "must be an environment's id (CartPole-v1) or package.module:Class")
    return env


def _known_score(score: str) -> str:
    if score.removeprefix("min-") not in KNOWN_METRICS:
        raise PydanticCustomError(RULE, "must be a metric that results report, min- in front where less is better")
    return score


def _as_written(number: float) -> float:
    return int(number) if float(number).is_integer() else number


Number = Annotated[float, AfterValidator(_as_written), PlainSerializer(_as_written)]
"""A number that stays whole where it was written whole."""


class CommonExperiment(KeyGroup):
    """What stands beside ``config:`` whatever the agent."""

    name: Annotated[str, AfterValidator(_folder_name)]
    """The experiment's name: the key it stands under in its file, and its folder among the results."""

    run: str
    """The agent that learns, in any case."""

    env: Annotated[str, AfterValidator(_env_name)]
    """The environment: an id of Gymnasium, or ``package.module:Class``."""

    stop: dict[Annotated[str, AfterValidator(known_metric)], Number] = Field(default_factory=dict)
    """Metrics and numbers: the first metric to reach its number stops a trial. Empty: it runs until interrupted."""

    num_samples: Count = 1
    """How often each variant runs, every time with another seed."""

    checkpoint_freq: CountOrZero = 0
    """Iterations between two checkpoints. 0: none on the way."""

    checkpoint_at_end: bool = True
    """Write a checkpoint when a trial stops. RLlib did not; its trained policies were lost."""

    keep_checkpoints_num: Count | None = None
    """Checkpoints that a trial keeps, the best by ``checkpoint_score_attr``. Null: all."""

    checkpoint_score_attr: Annotated[str, AfterValidator(_known_score)] = "training_iteration"
    """The metric by which a checkpoint is better the higher it is; ``min-`` in front: the lower."""

    time_budget_s: Positive | None = None
    """Seconds after which all trials of the experiment stop; each writes a checkpoint. Null: no limit."""

    restore: str | None = None
    """A checkpoint's folder to start from: its weights, optimizer and counters. Null: start afresh."""

    max_failures: Annotated[Whole, Field(ge=-1)] = 0
    """How often a trial that failed starts again from its last checkpoint. -1: always."""

    search: SearchConfig = SearchConfig()
    """What ``rlexp sweep`` looks for, and how; an experiment that has it is a sweep."""

    config: CommonConfig
    """The agent's keys."""

    @property
    def is_sweep(self) -> bool:
        """Whether the file has a ``search`` section."""
        return "search" in self.model_fields_set

    def conflicts(self) -> Iterator[Conflict]:
        """Yield metrics of evaluations where there are none, and schedulers that do not know where to begin."""
        yield from super().conflicts()
        if not self.config.evaluation_interval:
            yield from self._never_reported()
        yield from self.config.env_conflicts(self.env)
        yield from self._unfit_filters()
        search = self.search
        if search.interval(self.stop.get(search.time_attr)) is None:
            key = "perturbation_interval" if search.scheduler == "pbt" else "grace_period"
            message = f"search.scheduler is {search.scheduler}, but neither stop.{search.time_attr}"
            hint = "set one of them: it says how long a trial trains before it is judged"
            yield Conflict(("search.scheduler",), f"{message} nor search.{search.scheduler}.{key} is given", hint)

    def _unfit_filters(self) -> Iterator[Conflict]:
        """Yield convolutions for Atari frames of another size; that of other images is known when a run begins."""
        config, model = self.config, self.config.model
        scaled = config.preprocessor_pref is not None and is_atari(self.env)
        found = misfit(model.atari_dim, model.atari_dim, model.conv_filters) if scaled and model.conv_filters else None
        if found is not None:
            message, hint = found
            yield Conflict(("config.model.conv_filters", "config.model.dim"), f"config.{message}", hint)

    def _never_reported(self) -> Iterator[Conflict]:
        hint = "set config.evaluation_interval to the iterations between two evaluations"
        for metric in sorted(self.stop.keys() & set(EVALUATION_METRICS)):
            yield Conflict(("stop",), f"stop.{metric} is never reported: nothing is evaluated", hint)
        named = {"checkpoint_score_attr": self.checkpoint_score_attr, "search.metric": self.search.metric}
        for key, metric in named.items():
            if metric.removeprefix("min-") in EVALUATION_METRICS:
                yield Conflict((key,), f"{key} {metric} is never reported: nothing is evaluated", hint)


class DQNExperiment(CommonExperiment):
    """An experiment with DQN."""

    run: Literal["DQN"]
    config: DQNConfig = DQNConfig()


class ApexExperiment(CommonExperiment):
    """An experiment with Ape-X."""

    run: Literal["APEX"]
    config: ApexConfig = ApexConfig()


class PPOExperiment(CommonExperiment):
    """An experiment with PPO."""

    run: Literal["PPO"]
    config: PPOConfig = PPOConfig()


Experiment = Annotated[DQNExperiment | ApexExperiment | PPOExperiment, Field(discriminator="run")]

AGENTS: Mapping[str, type[DQNExperiment] | type[ApexExperiment] | type[PPOExperiment]] = MappingProxyType(
    {"DQN": DQNExperiment, "APEX": ApexExperiment, "PPO": PPOExperiment}
)
"""The agents whose files are understood, and what their experiments look like."""

RUNNABLE = ("DQN", "APEX")
"""The agents that can train; files of the others can be checked and converted."""


def required_cpus(experiment: Experiment) -> float:
    """Return the CPUs that one trial reserves: the driver's and the workers'; replay shards take none."""
    config = experiment.config
    return config.num_cpus_for_driver + config.num_workers * config.num_cpus_per_worker


def required_gpus(experiment: Experiment) -> float:
    """Return the GPUs that one trial reserves: the learner's and the workers'."""
    config = experiment.config
    return config.num_gpus + config.num_workers * config.num_gpus_per_worker
