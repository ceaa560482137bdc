"""Groups: the trials that are one thing, measured over several seeds."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlexp.errors import UsageError
from rlexp.results.hyperparameters import SettingsReader, differing
from rlexp.results.trial_folder import TrialFolder, trials_at
from rlexp.runs.run_record import SEE_LS

_MAX_LABELLED = 4
"""More differing settings than these say less than a directory's name."""
_INDEX_AND_SAMPLE = re.compile(r"^\d+-|-sample=\d+$")


@dataclass(frozen=True)
class Group:
    """Trials under one name; those of a run that was named alone differ in their seeds only."""

    name: str
    trials: tuple[TrialFolder, ...]


def groups_of(arguments: Sequence[str], reader: SettingsReader) -> list[Group]:
    """Return the groups that the arguments of ``compare`` mean: ``PATH`` or ``NAME=PATH[,PATH...]``, in their order.

    A named group takes all trials of its paths. The trials of a run that is named alone are as many
    groups as they have different settings, seeds apart. Raises UsageError where a path is wrong, a
    name is given twice or a trial would count twice.
    """
    gathered: dict[str | Path, list[TrialFolder]] = {}
    for argument in arguments:
        name, paths = _split(argument)
        if name in gathered:
            raise UsageError(f"the group {name} is given twice", f"{name}=PATH,PATH takes several paths")
        for trial in [trial for path in paths for trial in trials_at(path)]:
            gathered.setdefault(trial.run.path.resolve() if name is None else name, []).append(trial)
    for trials in gathered.values():
        _refuse_repeated(trials)
    return list(_named(gathered, reader))


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
    """Return the trials of a run, those with the same settings together; with none, those that are called alike."""
    variants: dict[object, list[TrialFolder]] = {}
    for trial in trials:
        settings = sorted(reader.settings(trial).items()) if trial.parameters else None
        key = tuple(settings) if settings else _INDEX_AND_SAMPLE.sub("", trial.path.resolve().name)
        variants.setdefault(key, []).append(trial)
    return [tuple(variant) for variant in variants.values()]


def _labels(variants: Sequence[tuple[TrialFolder, ...]], reader: SettingsReader) -> list[str]:
    """Return what tells the variants of a run apart: what it varied, or in what they differ, or their directories."""
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
    """Return a group's name, None where a path stands alone, and its paths.

    What exists is a path, whatever its name; a group's name has no slash.
    """
    name, equals, paths = argument.partition("=")
    if os.path.exists(argument) or not equals or not name or not paths or "/" in name:
        return None, [Path(argument)]
    return name, list(_paths(paths))


def _paths(text: str) -> Iterator[Path]:
    """Yield the paths of a list with commas, which directories' names may have too: the longest that exists counts."""
    pieces = text.split(",")
    while pieces:
        taken = next((n for n in range(len(pieces), 1, -1) if os.path.exists(",".join(pieces[:n]))), 1)
        path = Path(",".join(pieces[:taken])).expanduser()
        yield from [path] if os.path.exists(path) else _matches(path)
        pieces = pieces[taken:]


def _matches(pattern: Path) -> list[Path]:
    """Return the directories that a pattern means: no shell expands one behind a name and ``=``."""
    found = [Path(path) for path in sorted(glob.glob(str(pattern))) if Path(path).is_dir()]
    if not found:
        raise UsageError(f"path {pattern} does not exist", SEE_LS)
    return found
