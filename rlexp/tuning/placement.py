"""The resource bundles of a trial, in one Ray placement group."""

from __future__ import annotations

from ray import tune

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import bundles_of


def placement(experiment: Experiment) -> tune.PlacementGroupFactory:
    """Return the bundles of a trial for Tune, which waits until Ray has placed all of them."""
    bundles = bundles_of(experiment.config)
    return tune.PlacementGroupFactory([dict(bundle) for bundle in bundles.listed], strategy=bundles.strategy)
