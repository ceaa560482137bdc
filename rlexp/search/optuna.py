"""Optuna for a sweep: its sampler, a space as its parameters, and the storage of its study.

The sampler that ``search.optuna`` names is tried before a sweep begins. A space has one parameter for each key, and one
for each sampler inside a value of a key. Numbers are unchanged; values of lists get readable labels. Optuna's spaces
are defined by running: for a ``choice`` whose values hold samplers, the index of the value is suggested first. The
parameters inside it follow under names such as ``exploration_config[1].temperature``. A parameter has the same name and
distribution in every configuration, as ``TPESampler(multivariate=True, group=True)`` needs it.

Only the storage in ``search.optuna.storage`` is opened, and no other file of the user. Databases and journal files hold
JSON; nothing in them is unpickled. (Optuna would unpickle snapshots of a journal in Redis, and the state of its CMA-ES
sampler: the keys refuse both.)
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import reduce
from itertools import chain
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from rlexp.config.domains import Domain, Listed, Range
from rlexp.config.grid import SEARCH
from rlexp.config.keys.search import OptunaConfig
from rlexp.config.points import Alternatives, identity
from rlexp.config.sweep import Point, Sweep
from rlexp.config.yaml.nodes import KeyPath, dotted, shown
from rlexp.errors import ConfigError, Problem, UsageError
from rlexp.files import open_regular, parse_json
from rlexp.text import masked

if TYPE_CHECKING:
    import optuna

Label = None | bool | int | float | str
_REHEARSALS: Final = 64


def suggested_point(trial: optuna.trial.BaseTrial, domains: Mapping[str, Domain]) -> Point:
    """Return the point that a trial's sampler chooses."""
    return {key: _suggested(trial, key, domain) for key, domain in domains.items()}


def known_point(parameters: Mapping[str, Any], domains: Mapping[str, Domain]) -> Point | None:
    """Return the point of a trial; None for parameters that are missing or not in the space."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about parameters outside of their range
        try:
            return suggested_point(optuna.trial.FixedTrial(dict(parameters)), domains)
        except (KeyError, TypeError, ValueError):
            return None


def rehearsed_distributions(domains: Mapping[str, Domain]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return each parameter's distribution; if values decide which there are, from enough points to see all."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for _ in range(_REHEARSALS):
        trial = study.ask()
        suggested_point(trial, domains)
        found |= trial.distributions
    return found


def parameters_of(point: Point, domains: Mapping[str, Domain]) -> dict[str, Any]:
    """Return a point as Optuna's parameters, with the parameters inside its values.

    Raises KeyError or ValueError if the point does not fit the space.
    """
    found = (_parameters(key, domain, point[key]) for key, domain in domains.items())
    return dict(chain.from_iterable(found))


def _suggested(trial: optuna.trial.BaseTrial, name: str, domain: Domain) -> Any:
    if isinstance(domain, Listed):
        values = _labelled(domain)
        return values[trial.suggest_categorical(name, list(values))]
    if isinstance(domain, Alternatives):
        place = trial.suggest_categorical(name, range(len(domain.alternatives)))
        chosen = domain.alternatives[place]
        return chosen.filled(
            {
                path: _suggested(trial, _name_inside(name, place, path), inside)
                for path, inside in chosen.domains.items()
            }
        )
    assert isinstance(domain, Range)  # others were refused when the file was read
    if domain.step is None:
        return domain.limited(trial.suggest_float(name, domain.low, domain.high, log=domain.is_log))
    if isinstance(domain.step, int) and isinstance(domain.low, int) and isinstance(domain.high, int):
        step = 1 if domain.is_log else domain.step
        return domain.limited(trial.suggest_int(name, domain.low, domain.high, step=step, log=domain.is_log))
    return domain.limited(trial.suggest_float(name, domain.low, domain.high, step=domain.step))


def _parameters(name: str, domain: Domain, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameter of a value, and the parameters of samplers inside it."""
    if isinstance(domain, Listed):
        yield name, {identity(known): label for label, known in _labelled(domain).items()}[identity(value)]
    elif isinstance(domain, Alternatives):
        place, values = domain.taken(value)
        yield name, place
        for path, inside in domain.alternatives[place].domains.items():
            yield from _parameters(_name_inside(name, place, path), inside, values[path])
    else:
        yield name, value


def _name_inside(name: str, place: int, path: KeyPath) -> str:
    """Return the name of a parameter inside the nth value of another: ``exploration_config[1].temperature``."""
    inside = dotted(path)
    return f"{name}[{place}]" + (inside if not inside or inside.startswith("[") else f".{inside}")


def _labelled(domain: Listed) -> dict[Label, Any]:
    """Return the distinct values of a list by their labels: themselves, or JSON if Optuna cannot hold one of them.

    Optuna has text, numbers, true, false and null, and treats 1 and true as equal.
    """
    values = {identity(value): value for value in domain.values}
    plain: dict[Label, Any] = {
        value: value for value in values.values() if value is None or isinstance(value, bool | int | float | str)
    }
    return plain if len(plain) == len(values) else dict(values.items())


_CLASSES: Final[Mapping[str, str]] = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
}
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",)}
"""Packages that samplers need beside Optuna."""
_TYPES: Final[Mapping[str, Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "None": None,
    "dict[str, Any]": dict[str, Any],
}
"""Types of arguments that a file can give."""
_FEWEST_OF_CMAES: Final = 2
"""Least number of ranges; with fewer, Optuna's CMA-ES draws at random."""
_SUGGESTIONS: Final = 30
"""Suggestions of a rehearsal: after so many, CMA-ES has updated its distribution, and TPE has left its random phase."""


def require_sampler(sweep: Sweep) -> None:
    """Raise UsageError if a sweep needs Optuna, which is not installed.

    Raises ConfigError if the sampler needs another package, does not fit the space, cannot be made with
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
    """Return the sampler; for ``tpe``, points that are being tried count as bad ones meanwhile."""
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
        warnings.simplefilter("ignore")  # warnings that a sampler is experimental
        return sampler_class(**{name: value for name, value in {**extra, **given}.items() if name in names})


def _sampler_class(options: OptunaConfig) -> type[optuna.samplers.BaseSampler]:
    import optuna

    sampler_class: type[optuna.samplers.BaseSampler] = getattr(optuna.samplers, _CLASSES[options.sampler])
    return sampler_class


def _problems(sweep: Sweep) -> Iterator[Problem]:
    """Yield the problems of ``sampler_kwargs``, each at its line."""
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
    """Return the type of an argument in Optuna's annotation; None if a file cannot give it, as a function."""
    parts = [part.strip() for part in annotation.split("|")]
    return reduce(or_, (_TYPES[part] for part in parts)) if _TYPES.keys() >= set(parts) else None


def _failure(sweep: Sweep) -> str | None:
    """Return why a sampler cannot be made or fails before its first suggestions; None if it works."""
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
    """Return the line of a key of ``search.optuna``, or of the search if the key is not given."""
    node = sweep.space.node.find((SEARCH, "optuna", *path))
    return str(sweep.place if node is None else node.key_place)


_KEY: Final = "search.optuna.storage"
_TABLE: Final = "studies"
"""The table that Optuna makes first."""
_ATTEMPTS: Final = 10
_SECONDS_BETWEEN_ATTEMPTS: Final = 0.2
_LOCK_TIMEOUT_S: Final = 100.0
"""Seconds that a command waits for another one's write to an SQLite file."""
_LONGEST_LINE: Final = 1 << 20


def open_storage(storage: str, folder: Path) -> optuna.storages.BaseStorage:
    """Return a storage by its URL, or by the path of a journal file; both may be relative to ``folder``.

    Raises UsageError if it cannot be opened, or is a file of another kind.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        if "://" not in storage:
            path = folder / os.path.expanduser(storage)
            _refuse_other_file(path, _is_journal(path), "journal file")
            return JournalStorage(JournalFileBackend(str(path)))
        url, options = _database(storage, folder)
        return _with_tables(lambda: RDBStorage(url, engine_kwargs=options))
    except UsageError:
        raise
    except ImportError as error:
        package = str(error.__cause__ or error)
        raise UsageError(
            f"{_KEY} needs a driver that is not installed: {masked(package)}", "install it by pip"
        ) from error
    except Exception as error:  # errors of the database's driver
        what = f"{type(error).__name__}: {masked(str(error)).splitlines()[0]}"
        hint = "start the database, or correct the URL: sqlite:///study.db, postgresql://user:password@host/database"
        raise UsageError(f"{_KEY} cannot be opened: {what}", hint) from error


def _with_tables(make: Callable[[], optuna.storages.BaseStorage]) -> optuna.storages.BaseStorage:
    """Return a database's storage, with a second try, as two commands may make its tables at once."""
    from sqlalchemy.exc import DBAPIError

    for _ in range(_ATTEMPTS):
        try:
            return make()
        except DBAPIError:
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
    return make()


def _database(storage: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the URL of a database with an absolute path, and the options of its connections."""
    from sqlalchemy.engine import make_url

    url = make_url(storage)
    if url.get_backend_name() != "sqlite":
        return storage, {"pool_pre_ping": True}
    if url.query or not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise UsageError(f"{_KEY} must name a file, as in sqlite:///study.db", "leave it out for a study in memory")
    path = folder / url.database
    _refuse_other_file(path, _is_database(path), "SQLite database")
    return str(url.set(database=str(path))), {"connect_args": {"timeout": _LOCK_TIMEOUT_S}}


def _refuse_other_file(path: Path, is_study: bool, kind: str) -> None:
    """Raise UsageError for a file that is not Optuna's, as an experiment file may come from anywhere."""
    if not path.parent.is_dir():
        raise UsageError(f"{_KEY}: the directory {path.parent} does not exist", "make it, or name a file elsewhere")
    if path.exists() and not is_study:
        raise UsageError(f"{_KEY}: {path} is not a {kind} of Optuna", "name a file that does not exist")


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_S)
        ) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return False
    return not tables or _TABLE in tables


def _is_journal(path: Path) -> bool:
    try:
        with open_regular(path, None) as file:
            line = file.readline(_LONGEST_LINE)
    except OSError:
        return False
    try:
        return not line or "op_code" in parse_json(line)
    except (TypeError, ValueError):
        return False
