"""Groups: the trials with the same settings and different seeds, and in which settings groups differ."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlexp.compare.run_listing import ClosedFolderError, TrialFolder, trials_at
from rlexp.config.grid import GRID
from rlexp.config.yaml.reader import read_file
from rlexp.errors import Notice, UsageError
from rlexp.files import to_json
from rlexp.runs.record import RESOLVED_FILE, hint_to_runs
from rlexp.text import MISSING, masked

Settings = Mapping[str, str]
"""Values as JSON by dotted name: ``{"config.lr": "0.001"}``."""

_SEED: Final = "config.seed"
_APART: Final = frozenset({"run", "env"})
"""What ``params.json`` has beside the config's keys."""
_PER_RUN: Final = frozenset({"config", "run", "env", "num_samples"})
"""Keys of an experiment that ``params.json`` has more exactly, or that are not settings of a trial."""
_MAX_LABELLED = 4
"""With more differing settings, a directory's name is the better label."""
_INDEX_AND_SAMPLE = re.compile(r"^\d+-|-sample=\d+$")


@dataclass(frozen=True)
class Group:
    """Trials under one name; trials of a run that was named alone differ in their seeds only."""

    name: str
    trials: tuple[TrialFolder, ...]


def groups_of(
    arguments: Sequence[str], reader: SettingsReader, leave_out: Callable[[Notice], None] = lambda notice: None
) -> list[Group]:
    """Return the groups that the arguments of ``compare`` mean: ``PATH`` or ``NAME=PATH[,PATH...]``, in their order.

    A named group takes all trials of its paths. The trials of a run that is named alone are as many groups as they have
    different settings, seeds apart. Raises UsageError if a path is wrong, a name or a trial is given twice. A directory
    that may not be read is given to ``leave_out``, with the reason, unless that leaves none.
    """
    gathered: dict[str | Path, list[TrialFolder]] = {}
    closed: list[ClosedFolderError] = []
    for argument in arguments:
        name, paths = _split(argument)
        if name in gathered:
            raise UsageError(f"the group {name} is given twice", f"{name}=PATH,PATH takes several paths")
        for trial in [trial for path in paths for trial in _readable(path, closed)]:
            gathered.setdefault(trial.run.path.resolve() if name is None else name, []).append(trial)
    if closed and not gathered:
        raise closed[0]
    for error in closed:
        leave_out(Notice(str(error.path), f"is left out: {error.reason}"))
    for trials in gathered.values():
        _refuse_repeated(trials)
    return list(_named(gathered, reader))


def _readable(path: Path, closed: list[ClosedFolderError]) -> list[TrialFolder]:
    """Return the trials at ``path``; none if it may not be read, with the error added to ``closed``."""
    try:
        return trials_at(path)
    except ClosedFolderError as error:
        closed.append(error)
        return []


def _named(gathered: dict[str | Path, list[TrialFolder]], reader: SettingsReader) -> Iterator[Group]:
    shown = Counter(key if isinstance(key, str) else key.name for key in gathered)
    for key, trials in gathered.items():
        if isinstance(key, str):
            yield Group(key, tuple(trials))
            continue
        name = key.name if shown[key.name] == 1 else str(trials[0].run.path)
        variants = _variants(trials, reader)
        labels = _labels(variants, reader)
        for label, variant in zip(labels, variants, strict=True):
            yield Group(" ".join(filter(None, [name if len(gathered) > 1 or not label else "", label])), variant)


def _variants(trials: Sequence[TrialFolder], reader: SettingsReader) -> list[tuple[TrialFolder, ...]]:
    """Return the trials of a run by their settings; trials without settings by their name."""
    variants: dict[object, list[TrialFolder]] = {}
    for trial in trials:
        settings = sorted(reader.settings(trial).items()) if trial.parameters else None
        key = tuple(settings) if settings else _INDEX_AND_SAMPLE.sub("", trial.path.resolve().name)
        variants.setdefault(key, []).append(trial)
    return [tuple(variant) for variant in variants.values()]


def _labels(variants: Sequence[tuple[TrialFolder, ...]], reader: SettingsReader) -> list[str]:
    """Return different labels for the variants of a run: what it varied, the settings that differ, or directories."""
    firsts = [variant[0] for variant in variants]
    if len(firsts) == 1:
        return [_varied(firsts[0], list(firsts[0].varied)) if _is_part_of_its_run(variants[0]) else ""]
    keys = {key for trial in firsts for key in trial.varied}
    by_grid = [_varied(trial, sorted(key for key in keys if _differs(firsts, key))) for trial in firsts]
    settings = [reader.settings(trial) for trial in firsts]
    names = differing(settings)
    by_settings = [
        ", ".join(f"{name.removeprefix('config.')}={each.get(name, '-')}" for name in names) for each in settings
    ]
    agents = [f"{trial.parameters.get('run', '?')} {trial.env}" for trial in firsts]
    choices = [by_grid, agents, *([by_settings] if len(names) <= _MAX_LABELLED else [])]
    directories = [trial.path.resolve().name for trial in firsts]
    return next((labels for labels in choices if len(set(labels)) == len(labels) and all(labels)), directories)


def _varied(trial: TrialFolder, keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={trial.varied[key]}" for key in keys if key in trial.varied)


def _differs(trials: Sequence[TrialFolder], key: str) -> bool:
    return len({repr(trial.varied.get(key)) for trial in trials}) > 1


def _is_part_of_its_run(trials: Sequence[TrialFolder]) -> bool:
    record = trials[0].run.record
    return record is not None and len(trials) < len(record.trials)


def _refuse_repeated(trials: Sequence[TrialFolder]) -> None:
    counts = Counter(trial.path.resolve() for trial in trials)
    for trial in trials:
        if counts[trial.path.resolve()] > 1:
            raise UsageError(f"{trial.path} is given twice", "each seed may count once only")


def _split(argument: str) -> tuple[str | None, list[Path]]:
    """Return a group's name, None for a path without one, and its paths.

    An argument that exists is a path, whatever its name; a group's name has no slash.
    """
    name, equals, paths = argument.partition("=")
    if os.path.exists(argument) or not equals or not name or not paths or "/" in name:
        return None, [Path(argument)]
    return name, list(_paths(paths))


def _paths(text: str) -> Iterator[Path]:
    """Yield the paths of a list with commas; names may contain commas too: the longest that exists is a path."""
    pieces = text.split(",")
    while pieces:
        taken = next((n for n in range(len(pieces), 1, -1) if os.path.exists(",".join(pieces[:n]))), 1)
        path = Path(os.path.expanduser(",".join(pieces[:taken])))
        yield from [path] if os.path.exists(path) else _matches(path)
        pieces = pieces[taken:]


def _matches(pattern: Path) -> list[Path]:
    """Return the directories that match a pattern: a shell does not expand it after a name and ``=``."""
    found = [Path(path) for path in sorted(glob.glob(str(pattern))) if Path(path).is_dir()]
    if not found:
        raise UsageError(f"path {pattern} does not exist", hint_to_runs(pattern))
    return found


class SettingsReader:
    """Reads the settings of trials; each run's ``resolved.yaml`` once."""

    def __init__(self) -> None:
        self._experiments: dict[Path, list[Mapping[str, Any]]] = {}

    def settings(self, trial: TrialFolder) -> Settings:
        """Return a trial's settings without its seed, secrets masked; empty if they cannot be read.

        Values are the trial's own (``params.json``, and what the run varied); ``stop`` and the like come from
        ``resolved.yaml`` if only one of its experiments can be the trial's.
        """
        parameters = trial.parameters
        outside = {key: value for key, value in trial.varied.items() if key.partition(".")[0] not in parameters}
        if not parameters:
            return dict(_flat(outside))
        experiment = self._experiment(trial)
        whole = {
            **{key: value for key, value in experiment.items() if key not in _PER_RUN},
            **{key: value for key, value in parameters.items() if key in _APART},
            "config": {key: value for key, value in parameters.items() if key not in _APART},
        }
        settings = dict(_flat(whole)) | dict(_flat(outside))
        settings.pop(_SEED, None)
        return settings

    def _experiment(self, trial: TrialFolder) -> Mapping[str, Any]:
        """Return the trial's experiment in ``resolved.yaml``; empty if several are possible."""
        path = trial.run.path
        if path not in self._experiments:
            self._experiments[path] = list(_resolved_experiments(path))
        run, env = trial.parameters.get("run"), trial.parameters.get("env")
        own = [
            each for each in self._experiments[path] if run in _choices(each, "run") and env in _choices(each, "env")
        ]
        return dict(masked(own[0])) if len(own) == 1 else {}


def differing(settings: Sequence[Settings]) -> list[str]:
    """Return the sorted names of values that are not the same in all ``settings``; a name may be missing in some."""
    names = sorted(set().union(*settings))
    return [name for name in names if len({each.get(name) for each in settings}) > 1]


def shared_settings(settings: Sequence[Settings]) -> Settings:
    """Return the settings that are the same in all; one that is not becomes its values, ``0.1 | 0.2``."""
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: dict.fromkeys(each.get(name, MISSING) for each in settings) for name in names}
    return {name: " | ".join(found) for name, found in values.items()}


def _resolved_experiments(run: Path) -> Iterator[Mapping[str, Any]]:
    path = run / RESOLVED_FILE
    root = read_file(path, RESOLVED_FILE).root if os.path.isfile(path) else None
    for experiment in (root.plain() if root else {}).values():
        if isinstance(experiment, dict):
            yield experiment


def _choices(experiment: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = experiment.get(key)
    choices = value.get(GRID) if isinstance(value, dict) else [value]
    return choices if isinstance(choices, list) else []


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values, without the choices of a grid: a trial has one of them."""
    for key, value in settings.items():
        if isinstance(value, dict) and value and GRID not in value:
            yield from _flat(value, f"{prefix}{key}.")
        elif not (isinstance(value, dict) and GRID in value):
            yield f"{prefix}{key}", to_json(value)
