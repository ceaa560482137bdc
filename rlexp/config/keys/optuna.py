"""The ``search.optuna`` section: which sampler of Optuna chooses points, and where its study is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from rlexp.config.keys.fields import Conflict, CountOrZero, FreeForm, KeyGroup

DATABASES: Final = ("sqlite", "mysql", "postgresql")
"""What Optuna can keep a study in by URL, with any driver: ``postgresql+psycopg2``."""
_SCHEME: Final = re.compile(r"(?P<database>[A-Za-z0-9]+)(\+\w+)?://")
_DATABASE_FILE: Final = (".db", ".db3", ".sqlite", ".sqlite3")
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

    storage: Annotated[str, Field(min_length=1)] | None = None
    """Where the study is kept, for optuna-dashboard and for other sweeps that join it: the URL of a database
    (``sqlite:///study.db``), or the path of a journal file of Optuna. Null: in memory only."""

    study_name: Annotated[str, Field(min_length=1)] | None = None
    """Name of the study in ``storage``; a sweep joins the study of this name. Null: the name of the experiment."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield arguments that have keys, and storages that Optuna does not have or that are not safe."""
        yield from super().conflicts()
        for name in self.sampler_kwargs.keys() & _OWN_KEYS.keys():
            yield Conflict((f"sampler_kwargs.{name}",), f"sampler_kwargs cannot have {name}", _OWN_KEYS[name])
        if self.storage is None and self.study_name is not None:
            yield Conflict(("study_name",), "study_name is given without storage", "write storage: sqlite:///study.db")
        if self.storage is not None:
            yield from self._wrong_storage(self.storage)
        if self.storage is not None and self.sampler == "cmaes":
            why = "Optuna keeps its state in the study as a pickle, which could run code of anyone who can write there"
            message = f"sampler: cmaes cannot be used with storage: {why}"
            yield Conflict(("sampler",), message, "use another sampler, or leave storage out")

    def _wrong_storage(self, storage: str) -> Iterator[Conflict]:
        scheme = _SCHEME.match(storage)
        if scheme is None and storage.endswith(_DATABASE_FILE):
            message = "storage is a path, so it would be a journal file of Optuna, but its name is that of a database"
            yield Conflict(("storage",), message, "write sqlite:/// before it, or end the name with .log")
        elif scheme is None and "://" in storage:
            yield Conflict(("storage",), "storage is not a URL of a database", "write sqlite:///study.db")
        elif scheme is not None and scheme["database"].lower() not in DATABASES:
            message = f"storage must be the URL of {', '.join(DATABASES)}, or a path; it begins with {scheme[0]}"
            yield Conflict(("storage",), message, "write sqlite:///study.db")
