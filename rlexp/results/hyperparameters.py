"""The settings of a trial, one flat name each, and in what several trials differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.config.space.grid import GRID
from rlexp.config.yaml.reader import read_file
from rlexp.json_file import to_json
from rlexp.results.trial_folder import TrialFolder
from rlexp.runs.run_directory import RESOLVED_FILE
from rlexp.runs.secrets import masked

Settings = Mapping[str, str]
"""Values as JSON by dotted name: ``{"config.lr": "0.001"}``."""

SEED: Final = "config.seed"
MISSING: Final = "-"
"""Stands where a trial does not have a setting."""
_APART: Final = frozenset({"run", "env"})
"""What ``params.json`` has beside the config's keys."""
_PER_RUN: Final = frozenset({"config", "run", "env", "num_samples"})
"""What of an experiment its trials know better, or that is no setting of theirs."""


class SettingsReader:
    """Reads the settings of trials; each run's ``resolved.yaml`` once."""

    def __init__(self) -> None:
        self._experiments: dict[Path, list[Mapping[str, Any]]] = {}

    def settings(self, trial: TrialFolder) -> Settings:
        """Return a trial's settings, all but its seed, secrets masked; empty where they cannot be read.

        Values are those of the trial itself (``params.json``, and what the run varied); ``stop`` and
        the like come from ``resolved.yaml`` where it says without doubt which experiment is the trial's.
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
        settings.pop(SEED, None)
        return settings

    def _experiment(self, trial: TrialFolder) -> Mapping[str, Any]:
        """Return what ``resolved.yaml`` says of the trial's experiment; nothing where several may be meant."""
        path = trial.run.path
        if path not in self._experiments:
            self._experiments[path] = list(_resolved_experiments(path))
        run, env = trial.parameters.get("run"), trial.parameters.get("env")
        own = [
            each for each in self._experiments[path] if run in _choices(each, "run") and env in _choices(each, "env")
        ]
        return dict(masked(own[0])) if len(own) == 1 else {}


def differing(settings: Sequence[Settings]) -> list[str]:
    """Return the names, sorted, whose value is not the same in all ``settings``; a name may be missing in some."""
    names = sorted(set().union(*settings))
    return [name for name in names if len({each.get(name) for each in settings}) > 1]


def shared_settings(settings: Sequence[Settings]) -> Settings:
    """Return the settings that are the same in all; one that is not becomes its values, ``0.1 | 0.2``."""
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: dict.fromkeys(each.get(name, MISSING) for each in settings) for name in names}
    return {name: " | ".join(found) for name, found in values.items()}


def _resolved_experiments(run: Path) -> Iterator[Mapping[str, Any]]:
    path = run / RESOLVED_FILE
    root = read_file(path, RESOLVED_FILE).root if path.is_file() else None
    for experiment in (root.plain() if root else {}).values():
        if isinstance(experiment, dict):
            yield experiment


def _choices(experiment: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = experiment.get(key)
    choices = value.get(GRID) if isinstance(value, dict) else [value]
    return choices if isinstance(choices, list) else []


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values; not the choices of a grid, of which a trial has one."""
    for key, value in settings.items():
        if isinstance(value, dict) and value and GRID not in value:
            yield from _flat(value, f"{prefix}{key}.")
        elif not (isinstance(value, dict) and GRID in value):
            yield f"{prefix}{key}", to_json(value)
