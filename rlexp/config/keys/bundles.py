"""Bundles: what a trial reserves, in the parts that a cluster places on its nodes one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlexp.config.keys.common import CommonConfig

Amounts = Mapping[str, float]
"""Amounts of resources by Ray's names, ``CPU``, ``GPU`` or a cluster's own; only those above 0."""

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK"]
"""How the bundles of a trial are placed on nodes: on few, on many, or all on one."""


@dataclass(frozen=True)
class Bundles:
    """What one trial reserves. Each bundle lies on one node as a whole; several may lie on the same node."""

    driver: Amounts
    """For the driver, its replay shards and the learner, where there is only one. Empty where they reserve nothing."""
    learner: Amounts
    """For each of several learners."""
    num_learners: int
    """Bundles of learners; 0 where the driver has the only learner, or where learners reserve nothing."""
    worker: Amounts
    """For each rollout worker."""
    num_workers: int
    """Bundles of workers; 0 where workers reserve nothing."""
    num_elastic_workers: int
    """Workers beyond ``min_num_workers``: they have no bundle, and the trial begins without them."""
    strategy: Strategy

    @property
    def listed(self) -> list[Amounts]:
        """Return all bundles, also an empty one of the driver, in the order in which they are numbered."""
        return [self.driver, *[self.learner] * self.num_learners, *[self.worker] * self.num_workers]

    @property
    def of_driver(self) -> int | None:
        """The number of the driver's bundle; None where it is empty: Ray leaves out an empty bundle."""
        return 0 if self.driver else None

    def of_worker(self, index: int) -> int | None:
        """Return the number of a worker's bundle; None where it has none."""
        return int(bool(self.driver)) + self.num_learners + index if index < self.num_workers else None

    def total(self, name: str) -> float:
        """Return how much of a resource all bundles reserve together."""
        parts = ((self.driver, 1), (self.learner, self.num_learners), (self.worker, self.num_workers))
        return sum(bundle.get(name, 0.0) * number for bundle, number in parts)


def bundles_of(config: CommonConfig) -> Bundles:
    """Return what a trial with these keys reserves; each actor has room that was made for it, and waits for no other."""
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


def _bundle(cpus: float, gpus: float, custom: Amounts | None = None) -> dict[str, float]:
    return {name: amount for name, amount in {"CPU": cpus, "GPU": gpus, **(custom or {})}.items() if amount > 0}
