"""Files and overrides become a plan of trials, or every error at once."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlexp.config.command_line import LoadOptions, parse_overrides
from rlexp.config.keys.user_code import UserModules, folders_for
from rlexp.config.parsed_experiment import ParsedExperiment, parsed_experiment_of, without_repetitions
from rlexp.config.plan import Plan, planned, resolved_yaml
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Finding, Node, Place, shown_key
from rlexp.config.yaml.python_values import NotAFile
from rlexp.config.yaml.reader import read_text
from rlexp.errors import ConfigError

__all__ = ["LoadOptions", "Plan", "load_plan", "resolved_yaml"]

AS_IT_STANDS = LoadOptions()

SEED_BITS = 31
"""Bits of a fresh seed, and of derived ones."""

_KEYS_OF_AN_EXPERIMENT = ("run", "algo", "env", "stop", "config")
_LAST_LINE = sys.maxsize


@dataclass(frozen=True)
class _Entry:
    """One experiment of a file, before it is parsed."""

    name: str
    node: Node
    notices: tuple[Finding, ...]
    """Notices about its text for the user."""


def load_plan(
    paths: Sequence[Path | str | NotAFile],
    overrides: Sequence[str] = (),
    seed: int | None = None,
    options: LoadOptions = AS_IT_STANDS,
    fresh_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS),
) -> Plan:
    """Read experiment files and plan their trials.

    Args:
        paths: experiment files, or dicts in place of them; their order is the order of the trials.
        overrides: ``key.path=value`` each, for every experiment; later ones win.
        seed: the same as the override ``config.seed``.
        options: how to read them.
        fresh_seed: function that returns the seed of an experiment without one.

    Raises:
        ConfigError: with every problem of every file, by position.

    """
    parsed_experiments = load_experiments(paths, overrides, seed, options)
    sources = tuple(path if isinstance(path, NotAFile) else Path(path) for path in paths)
    files = (source for source in sources if isinstance(source, Path))
    folders = folders_for(files) if options.module_folders is None else options.module_folders
    return planned(parsed_experiments, sources, UserModules(options.imports, folders), fresh_seed)


def load_experiments(
    paths: Sequence[Path | str | NotAFile],
    overrides: Sequence[str] = (),
    seed: int | None = None,
    options: LoadOptions = AS_IT_STANDS,
) -> list[ParsedExperiment]:
    """Read experiment files, without deciding their seeds and names; raises ConfigError as ``load_plan`` does."""
    laid_over, findings = parse_overrides(overrides, seed, options.flags)
    entries, unreadable = _entries(paths)
    findings += (*unreadable, *_named_twice(entries))
    parsed_experiments: list[ParsedExperiment] = []
    for entry in entries:
        parsed, wrong = parsed_experiment_of(entry.name, entry.node, laid_over, options)
        if parsed is not None:
            noticed = replace(parsed, notices=(*entry.notices, *parsed.notices))
            parsed_experiments.append(without_repetitions(noticed))
        findings += wrong
    findings += _too_many(parsed_experiments, options.most_trials)
    if findings:
        raise ConfigError([finding.problem() for finding in _ordered(findings, unreadable, paths)])
    return parsed_experiments


def converted_file(path: Path, options: LoadOptions = AS_IT_STANDS) -> str:
    """Return a file's text in current spelling; raises ConfigError if it has any error."""
    from rlexp.config.convert import converted  # no other command converts

    return converted(load_experiments([path], options=options), read_text(path, str(path)))


def _entries(paths: Sequence[Path | str | NotAFile]) -> tuple[list[_Entry], tuple[Finding, ...]]:
    """Return the experiments of all files, and findings about the files."""
    entries: list[_Entry] = []
    findings: list[Finding] = []
    for path in paths:
        text = path.read() if isinstance(path, NotAFile) else reader.read_file(Path(path), str(path))
        findings.extend(text.problems)
        if text.root is None:
            continue
        nameless = _without_a_name(text.root)
        if nameless is not None:
            findings.append(nameless)
            continue
        if not text.root.entries():
            findings.append(Finding(Place(str(path)), "has no experiment", "write one, with run and env at least"))
        entries.extend(_of_one_file(text))
    return entries, tuple(findings)


def _of_one_file(text: reader.YamlText) -> Iterator[_Entry]:
    """Yield a file's experiments, each with the notices of its lines."""
    assert text.root is not None
    starts = {name: node.key_place.line for name, node in text.root.entries().items()}
    for name, node in text.root.entries().items():
        later = [line for line in starts.values() if line > starts[name]]
        lines = range(starts[name], min(later, default=_LAST_LINE))
        yield _Entry(name, node, tuple(notice for notice in text.notices if notice.place.line in lines))


def _without_a_name(root: Node) -> Finding | None:
    """Return a finding about a file whose top level is an experiment; None if it has a name."""
    keys = [key for key in _KEYS_OF_AN_EXPERIMENT if key in root.entries()]
    values = [root.entries()[key].value for key in keys if key not in ("config", "stop")]
    if not any(isinstance(value, str) for value in values):
        return None
    place = min((root.entries()[key].key_place for key in keys), key=lambda place: (place.line, place.column))
    whole, hint = "a file", "write my-experiment: in the first line, and indent everything else below it"
    if place.subscript:
        whole, hint = "the dict", 'write {"my-experiment": {"run": ..., "env": ...}}'
    message = f"the experiment has no name: {', '.join(keys)} cannot be at the top level of {whole}"
    return Finding(place, message, hint)


def _named_twice(entries: Iterable[_Entry]) -> Iterable[Finding]:
    first_places: dict[str, Place] = {}
    for entry in entries:
        place = entry.node.key_place
        first = first_places.setdefault(entry.name, place)
        if first is not place:
            message = f"experiment {shown_key(entry.name)} already exists at {first}"
            yield Finding(place, message, "give each experiment its own name")


def _too_many(parsed_experiments: Iterable[ParsedExperiment], most: int) -> tuple[Finding, ...]:
    total = 0
    for parsed in parsed_experiments:
        total += parsed.number_of_trials
        if total > most:
            message = f"with {parsed.name} there are {total} trials, more than {most}"
            return (Finding(parsed.place, message, "lower num_samples, or try fewer values"),)
    return ()


def _ordered(
    findings: Iterable[Finding], unreadable: Iterable[Finding], paths: Sequence[Path | str | NotAFile]
) -> list[Finding]:
    """Return findings without repetitions, by file and position; findings of the command line last.

    If a value cannot be read, other problems at its place are left out.
    """
    rank = {str(path): number for number, path in enumerate(paths)}
    first = dict.fromkeys(unreadable)
    broken = {finding.place for finding in first}
    found = dict.fromkeys((*first, *(finding for finding in findings if finding.place not in broken)))

    def position(finding: Finding) -> tuple[int, int, int]:
        place = finding.place
        return rank.get(place.source, len(rank)), place.line, place.column

    return sorted(found, key=position)
