"""The command line's part of experiments: how to read files, overrides of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import KeyName
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Finding, Node, Place
from rlexp.errors import UsageError

Adjust = Callable[[Experiment], tuple[Experiment, tuple[str, ...]]]
"""A function that changes an experiment, for example to fit a machine, and returns what it changed."""

MAX_TRIALS: Final = 10_000
"""Maximum number of trials; a grid of seven axes reaches it by accident."""
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
    names: Mapping[str, str] = field(default_factory=dict)
    """Classes, or ids of envs, for names that a program registered in RLlib."""
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


def parse_names(texts: Iterable[str]) -> Mapping[str, str]:
    """Return the classes of ``--map NAME=MODULE:CLASS``, by name; raises UsageError for another form."""
    names: dict[str, str] = {}
    for text in texts:
        name, equals, found = (part.strip() for part in text.partition("="))
        if not (name and equals and found):
            raise UsageError(f"--map {text} names no class", "for example --map their_env=my_package.envs:TheirEnv")
        if names.setdefault(name, found) != found:
            raise UsageError(f"--map {text}: {name} is {names[name]} already", "give each name one class")
    return names


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
    of_flags = ((f"{flag.key}={flag.text}", Place(flag.shown)) for flag in flags)
    for text, place in (*of_flags, *((text, Place(shown_override(text))) for text in texts)):
        parsed = _parsed(text, place)
        if isinstance(parsed, Override):
            overrides.append(parsed)
        else:
            findings.extend(parsed)
    if seed is not None:
        place = Place(f"--seed {seed}")
        overrides.append(Override(("config", "seed"), Node(seed, place, place)))
    return tuple(overrides), tuple(findings)


def _parsed(text: str, place: Place) -> Override | tuple[Finding, ...]:
    key, equals, value_text = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        return (Finding(place, *_FORM),)
    value = reader.parse(value_text, lambda line, column: place)
    if value.problems:
        return value.problems
    return Override(path, value.root or Node(None, place, place))
