"""The ``search.optuna`` section: which sampler of Optuna chooses points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from rlexp.config.keys.fields import Conflict, CountOrZero, FreeForm, KeyGroup

_OWN_KEYS: Final = {
    "seed": "config.seed is the seed of the search",
    "n_startup_trials": "write it beside sampler_kwargs",
}
"""Arguments of samplers that are no ``sampler_kwargs``, and what to write."""


class OptunaConfig(KeyGroup):
    """The options of ``searcher: optuna``."""

    sampler: Literal["tpe", "random", "cmaes", "gp", "qmc", "nsgaii"] = "tpe"
    """Which sampler of Optuna chooses points: ``tpe`` (tree-structured Parzen estimator, Bergstra et al. 2011),
    ``random``, ``cmaes`` (CMA-ES, for numbers), ``gp`` (Gaussian process), ``qmc`` (Sobol sequence), ``nsgaii``
    (genetic). ``cmaes`` needs the package cmaes; ``gp`` and ``qmc`` need scipy."""

    sampler_kwargs: FreeForm = Field(default_factory=dict)
    """Other arguments of the sampler, by their names in Optuna: ``{multivariate: true}`` for ``tpe``."""

    n_startup_trials: CountOrZero = 10
    """Number of random configurations before the estimator is used; only for ``tpe``, ``gp`` and ``cmaes``."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield arguments of the sampler that other keys set."""
        yield from super().conflicts()
        for name in self.sampler_kwargs.keys() & _OWN_KEYS.keys():
            yield Conflict((f"sampler_kwargs.{name}",), f"sampler_kwargs cannot have {name}", _OWN_KEYS[name])
