"""The resource bundles of a trial, in one Ray placement group."""

from __future__ import annotations

from collections.abc import Mapping

from ray import tune

from rlexp.config.keys.experiment import Experiment


def placement(experiment: Experiment) -> tune.PlacementGroupFactory:
    """Return the bundles of a trial: the driver's, one per learner where there are several, then one per worker.

    Replay shards share what is there.

    Each actor has a bundle made for it, so that none can wait for room that its own trial does not have.
    """
    config, learners = experiment.config, experiment.config.learner_processes
    bundles = [_bundle(config.num_cpus_for_driver, 0.0 if learners else config.num_gpus, {})]
    if learners and (learner := _bundle(learners.cpus, learners.gpus, {})):
        bundles += [learner] * learners.number
    worker = _bundle(config.num_cpus_per_worker, config.num_gpus_per_worker, config.custom_resources_per_worker)
    if worker:
        bundles += [worker] * config.num_workers
    return tune.PlacementGroupFactory(bundles)


def _bundle(cpus: float, gpus: float, custom: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in {"CPU": cpus, "GPU": gpus, **custom}.items() if amount > 0}
