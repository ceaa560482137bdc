"""Trial: one variant of an experiment's grid, with its own name and seed, and the bundles that it reserves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.schedules import derive_seed

MAX_NAME_LENGTH = 100
"""Most characters of a trial's name; file systems allow 255 for a folder, and longer names contain it."""

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._,=+-]+")
_NAMED_ANYWAY = frozenset({"env"})


@dataclass(frozen=True)
class Trial:
    """One run of one agent, with everything decided."""

    index: int
    """Position among all trials of the plan, from 0."""
    name: str
    """Its folder: ``00003-APEX-CartPole-v1-lr=0.001-sample=1``."""
    experiment: Experiment
    """One variant: no grid, ``num_samples`` 1, ``config.seed`` a number."""
    varied: Mapping[str, Any]
    """Keys that the grid varies, with values here; without the word ``config``: ``lr``, ``stop.time_total_s``."""
    sample: int
    """Index among the experiment's ``num_samples``, from 0."""


def trial_of(index: int, experiment: Experiment, varied: Mapping[str, Any], sample: int) -> Trial:
    """Return the trial of a variant with the seed of its nth sample."""
    name = trial_name(index, experiment.run, experiment.env, varied, sample)
    return Trial(index, name, experiment.model_copy(update={"num_samples": 1}), varied, sample)


def trial_name(index: int, run: str, env: str, varied: Mapping[str, Any], sample: int) -> str:
    """Return a name that is a safe folder, unique by its index, and no longer than MAX_NAME_LENGTH."""
    parts = [f"{index:05d}", run, env]
    variations = ",".join(f"{key}={_short(value)}" for key, value in varied.items() if key not in _NAMED_ANYWAY)
    if variations:
        parts.append(variations)
    suffix = f"-sample={sample}" if sample else ""
    name = "-".join(_NOT_IN_A_NAME.sub("_", part) for part in parts)
    return name[: MAX_NAME_LENGTH - len(suffix)] + suffix


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "+".join(f"{key}={_short(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "+".join(_short(item) for item in value)
    return str(value)


def sample_seed(seed: int, sample: int) -> int:
    """Return the seed of an experiment's nth sample: its own seed for sample 0, derived ones after it."""
    return seed if sample == 0 else derive_seed(seed, "sample", sample)


Amounts = Mapping[str, float]
"""Amounts of resources by Ray's names, ``CPU``, ``GPU`` or a cluster's own; only those above 0."""

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK"]
"""The placement of a trial's bundles on nodes: on few, on many, or all on one."""


@dataclass(frozen=True)
class Bundles:
    """What one trial reserves. Each bundle is on one node as a whole; several may be on the same node."""

    driver: Amounts
    """The driver, its replay shards and a single learner. Empty if they reserve nothing."""
    learner: Amounts
    """Each of several learners."""
    num_learners: int
    """Number of learners' bundles; 0 if the driver has the only learner, or if learners reserve nothing."""
    worker: Amounts
    """Each rollout worker."""
    num_workers: int
    """Number of workers' bundles; 0 if workers reserve nothing."""
    num_elastic_workers: int
    """Workers beyond ``min_num_workers``: they have no bundle, and the trial begins without them."""
    strategy: Strategy

    @property
    def listed(self) -> list[Amounts]:
        """Return all bundles in the order of their numbers, with an empty one of the driver."""
        return [self.driver, *[self.learner] * self.num_learners, *[self.worker] * self.num_workers]

    @property
    def of_driver(self) -> int | None:
        """The number of the driver's bundle; None if it is empty, as Ray leaves out empty bundles."""
        return 0 if self.driver else None

    @property
    def of_first_learner(self) -> int | None:
        """The bundle number of the first of several learners; None if they have none. The others follow it."""
        return int(bool(self.driver)) if self.num_learners else None

    def of_worker(self, index: int) -> int | None:
        """Return the number of a worker's bundle; None if it has none."""
        return int(bool(self.driver)) + self.num_learners + index if index < self.num_workers else None

    def total(self, name: str) -> float:
        """Return the amount of a resource that all bundles reserve together."""
        parts = ((self.driver, 1), (self.learner, self.num_learners), (self.worker, self.num_workers))
        return sum(bundle.get(name, 0.0) * number for bundle, number in parts)


def bundles_of(config: CommonConfig) -> Bundles:
    """Return what a trial with these keys reserves: room for each actor, so that none waits for another."""
    learners = config.learner_processes
    learner = _bundle(learners.cpus, learners.gpus) if learners else {}
    worker = _bundle(config.num_cpus_per_worker, config.num_gpus_per_worker, config.custom_resources_per_worker)
    return Bundles(
        driver=_bundle(config.num_cpus_for_driver + config.cpus_of_shards, 0.0 if learners else config.num_gpus),
        learner=learner,
        num_learners=learners.number if learners and learner else 0,
        worker=worker,
        num_workers=config.num_reserved_workers if worker else 0,
        num_elastic_workers=config.num_workers - config.num_reserved_workers,
        strategy="STRICT_PACK" if config.needs_one_node else config.placement,
    )


def required_cpus(experiment: Experiment) -> float:
    """Return the CPUs that one trial reserves for driver, shards, several learners and workers."""
    return bundles_of(experiment.config).total("CPU")


def required_gpus(experiment: Experiment) -> float:
    """Return the GPUs that one trial reserves for learners and workers."""
    return bundles_of(experiment.config).total("GPU")


def cpus_of_learners(config: CommonConfig) -> float:
    """Return the CPUs that several learners reserve beside the driver; one learner reserves none."""
    learners = config.learner_processes
    return learners.number * learners.cpus if learners else 0.0


def _bundle(cpus: float, gpus: float, custom: Amounts | None = None) -> dict[str, float]:
    return {name: amount for name, amount in {"CPU": cpus, "GPU": gpus, **(custom or {})}.items() if amount > 0}
