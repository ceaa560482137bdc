"""The command line's part of experiments: how to read files, overrides of their values, RLlib's flags as a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import KeyName
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Finding, Node, Place
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import UsageError

Adjust = Callable[[Experiment], tuple[Experiment, tuple[str, ...]]]
"""A function that changes an experiment, for example to fit a machine, and returns what it changed."""

MAX_TRIALS: Final = 10_000
"""Maximum number of trials; a grid of seven axes reaches it by accident."""
_KEY_OF_EXPERIMENT: Final = re.compile(r"  (\w+):")

_EXAMPLES: Final = {"--config": '{"lr": 0.001}', "--stop": '{"timesteps_total": 10000}'}

_FORM = ("an override must be key.path=value", "for example -o lr=1e-3, or -o stop.timesteps_total=1e6")


@dataclass(frozen=True)
class Flag:
    """An option of the command line that is a key of every experiment."""

    shown: str
    """The option in messages: ``--num-samples 8``."""
    key: str
    """The dotted path of the key."""
    text: str
    """The value, as YAML."""


@dataclass(frozen=True)
class LoadOptions:
    """How files are read."""

    imports: tuple[str, ...] = ()
    """Modules that register environments, which may bring unknown ids."""
    module_folders: tuple[str, ...] | None = None
    """Folders in which the user's modules are searched. None: the current folder and the files' folders."""
    allow_unknown: bool = False
    """Leave unknown keys out, with a notice each, instead of refusing them."""
    packaged_agents: bool = True
    """Accept agents of installed packages too. Their keys are the package's code, which is imported to read them."""
    most_trials: int = MAX_TRIALS
    """Most trials of all files together."""
    is_sweep: bool = False
    """Whether this is a search, even if a file has no ``search`` section."""
    flags: tuple[Flag, ...] = ()
    """Values for every experiment before its other overrides."""
    adjust: Adjust | None = None
    """A function that is applied to every variant of every experiment after validation."""


@dataclass(frozen=True)
class Override:
    """One value from the command line."""

    path: KeyName
    """The path as given: ``config`` may be left out at its start."""
    value: Node


class BareOverride(str):
    """An override that was given as a word, ``lr=1e-3``, without ``-o``; messages show it so."""


def shown_override(text: str) -> str:
    """Return an override in the form in which it was given, for messages."""
    return text if isinstance(text, BareOverride) else f"-o {text}"


def parse_overrides(
    texts: Sequence[str], seed: int | None, flags: Sequence[Flag] = ()
) -> tuple[tuple[Override, ...], tuple[Finding, ...]]:
    """Return the overrides of flags, ``-o`` and ``--seed``, and findings about them."""
    overrides: list[Override] = []
    findings: list[Finding] = []
    of_flags = (_parsed(flag.key, flag.text, Place(flag.shown)) for flag in flags)
    for parsed in (*of_flags, *map(_parse, texts)):
        if isinstance(parsed, Override):
            overrides.append(parsed)
        else:
            findings.extend(parsed)
    if seed is not None:
        place = Place(f"--seed {seed}")
        overrides.append(Override(("config", "seed"), Node(seed, place, place)))
    return tuple(overrides), tuple(findings)


def _parse(text: str) -> Override | tuple[Finding, ...]:
    place = Place(shown_override(text))
    key, equals, value_text = text.partition("=")
    if not equals:
        return (Finding(place, *_FORM),)
    return _parsed(key, value_text, place)


def _parsed(key: str, value_text: str, place: Place) -> Override | tuple[Finding, ...]:
    path = tuple(part.strip() for part in key.split("."))
    if not all(path):
        return (Finding(place, *_FORM),)
    value = reader.parse(value_text, lambda line, column: place)
    if value.problems:
        return value.problems
    return Override(path, value.root or Node(None, place, place))


def experiment_text(name: str, run: str | None, env: str | None, config: str, stop: str, **keys: Any) -> str:
    """Return a file with one experiment; ``config`` and ``stop`` are JSON. Raises UsageError."""
    if run is None or env is None:
        raise UsageError(
            "train needs a file, or --run and --env", "rlexp train -f FILE, or --run DQN --env CartPole-v1"
        )
    experiment = {"run": run, "env": env, "stop": _group("--stop", stop), "config": _group("--config", config)}
    return to_yaml({name: experiment | {key: value for key, value in keys.items() if value is not False}})


def option_at(text: str, line: int) -> str:
    """Return the option from which a line (from 1) of such a file comes; messages cannot name a file nobody wrote."""
    lines = text.splitlines()[:line]
    keys = (found[1] for each in reversed(lines) if (found := _KEY_OF_EXPERIMENT.match(each)))
    return "--" + next(keys, "experiment-name").replace("_", "-")


def _group(option: str, text: str) -> dict[str, Any]:
    hint = f"for example {option} '{_EXAMPLES[option]}'"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}", hint) from error
    if not isinstance(data, dict):
        raise UsageError(f"{option} must be a JSON object", hint)
    return data
