"""The sampler of Optuna that ``search.optuna`` names, and whether it can be made, before a sweep begins."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from rlexp.config.keys.search import OptunaConfig
from rlexp.config.space.domains import Range
from rlexp.config.space.grid import SEARCH
from rlexp.config.sweep import Sweep
from rlexp.config.yaml.nodes import shown
from rlexp.errors import ConfigError, Problem, UsageError
from rlexp.search.optuna_space import suggested_point

if TYPE_CHECKING:
    import optuna

_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tpe": "TPESampler",
        "random": "RandomSampler",
        "cmaes": "CmaEsSampler",
        "gp": "GPSampler",
        "qmc": "QMCSampler",
        "nsgaii": "NSGAIISampler",
    }
)
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",)}
)
"""What samplers need beside Optuna."""
_TYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {"bool": bool, "int": int, "float": float, "str": str, "None": None, "dict[str, Any]": dict[str, Any]}
)
"""The types of arguments that a file can give."""
_FEWEST_OF_CMAES: Final = 2
"""Ranges: with fewer, Optuna's CMA-ES draws at random."""
_SUGGESTIONS: Final = 30
"""Of a rehearsal: with so few, CMA-ES updates its distribution, and TPE has left its random phase."""


def require_sampler(sweep: Sweep) -> None:
    """Raise UsageError where a sweep needs Optuna, which is not installed.

    Raises ConfigError where the sampler needs another package, does not fit the space, cannot be made with
    ``sampler_kwargs``, or fails in a rehearsal without trials.
    """
    if sweep.searcher != "optuna":
        return
    options = sweep.search.optuna
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("searcher optuna needs Optuna, which is not installed", "pip install 'rlexp[sweep]'")
    missing = [name for name in _PACKAGES.get(options.sampler, ()) if importlib.util.find_spec(name) is None]
    if missing:
        message = f"search.optuna.sampler {options.sampler} needs {' and '.join(missing)}, which is not installed"
        raise ConfigError([Problem(optuna_place(sweep, "sampler"), message, f"pip install {' '.join(missing)}")])
    numbers = sum(isinstance(domain, Range) for domain in sweep.space.domains.values())
    if options.sampler == "cmaes" and numbers < _FEWEST_OF_CMAES:
        message = f"search.optuna.sampler cmaes needs two or more ranges of numbers, and {sweep.name} has {numbers}"
        raise ConfigError(
            [Problem(optuna_place(sweep, "sampler"), message, "use another sampler; it would draw at random")]
        )
    problems = list(_problems(sweep)) if options.sampler_kwargs else []
    if problems:
        raise ConfigError(problems)


def make_sampler(options: OptunaConfig, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler; with ``tpe`` points that are being tried count as bad ones meanwhile."""
    sampler_class = _sampler_class(options)
    given = {
        "seed": seed,
        "n_startup_trials": options.n_startup_trials,
        "constant_liar": True,
        **options.sampler_kwargs,
    }
    names = inspect.signature(sampler_class).parameters
    extra = {"warn_independent_sampling": False, "warn_asynchronous_seeding": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a sampler is experimental
        return sampler_class(**{name: value for name, value in {**extra, **given}.items() if name in names})


def _sampler_class(options: OptunaConfig) -> type[optuna.samplers.BaseSampler]:
    import optuna

    sampler_class: type[optuna.samplers.BaseSampler] = getattr(optuna.samplers, _CLASSES[options.sampler])
    return sampler_class


def _problems(sweep: Sweep) -> Iterator[Problem]:
    """Yield what is wrong with ``sampler_kwargs``, each at its line."""
    options = sweep.search.optuna
    parameters = inspect.signature(_sampler_class(options)).parameters
    types = {name: _type_of(str(each.annotation)) for name, each in parameters.items() if name != "seed"}
    known = {name: type_ for name, type_ in types.items() if type_ is not None}
    is_wrong = False
    for name, value in options.sampler_kwargs.items():
        problem = _problem(name, value, known, _CLASSES[options.sampler])
        if problem is not None:
            is_wrong = True
            yield Problem(optuna_place(sweep, "sampler_kwargs", name), *problem)
    if not is_wrong and (why := _failure(sweep)):
        message = f"search.optuna.sampler_kwargs: {_CLASSES[options.sampler]} refuses them: {why}"
        yield Problem(optuna_place(sweep, "sampler_kwargs"), message)


def _problem(name: str, value: Any, types: Mapping[str, Any], sampler: str) -> tuple[str, str] | None:
    key = f"search.optuna.sampler_kwargs.{name}"
    if name not in types:
        names = ", ".join(sorted(types.keys() - {"n_startup_trials"})) or "none"
        return f"{key} is not an argument of {sampler} that a file can give", f"arguments: {names}"
    try:
        TypeAdapter(types[name]).validate_python(value, strict=True)
    except ValidationError as error:
        return f"{key} is wrong, got {shown(value)}", error.errors()[0]["msg"]
    return None


def _type_of(annotation: str) -> Any:
    """Return the type of an argument by how Optuna writes it, None where a file cannot give it: a function."""
    parts = [part.strip() for part in annotation.split("|")]
    if any(part not in _TYPES for part in parts):
        return None
    found = _TYPES[parts[0]]
    for part in parts[1:]:
        found = found | _TYPES[part]
    return found


def _failure(sweep: Sweep) -> str | None:
    """Return why a sampler cannot be made, or fails on the way to its first suggestions; None where it does not.

    The Gaussian process is only made: it imports torch, and its arguments are numbers and flags.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = sweep.search.optuna.model_copy(update={"n_startup_trials": 2})
    try:
        study = optuna.create_study(sampler=make_sampler(options, 0))
        for number in range(0 if options.sampler == "gp" else _SUGGESTIONS):
            trial = study.ask()
            suggested_point(trial, sweep.space.domains)
            study.tell(trial, float(number % 7))
    except Exception as error:  # whatever a sampler raises: each has its own
        return f"{type(error).__name__}: {error}"
    return None


def optuna_place(sweep: Sweep, *path: str) -> str:
    """Return the line of a key of ``search.optuna``; where it is not given, that of the search."""
    node = sweep.space.node.find((SEARCH, "optuna", *path))
    return str(sweep.place if node is None else node.key_place)
