"""Files and overrides to a plan of trials, or every error at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlexp.config import yaml_file
from rlexp.config.convert import converted
from rlexp.config.draft import Draft, draft_of
from rlexp.config.load_options import LoadOptions
from rlexp.config.nodes import Finding, Node, Place, shown_key
from rlexp.config.overrides import parse_overrides
from rlexp.config.plan import Plan, PlannedExperiment, planned, resolved_yaml
from rlexp.config.search_space import MAX_TRIALS
from rlexp.config.user_modules import UserModules, folders_for
from rlexp.config.yaml_text import read_text
from rlexp.errors import ConfigError

__all__ = ["LoadOptions", "Plan", "PlannedExperiment", "load_plan", "resolved_yaml"]

AS_IT_STANDS = LoadOptions()

SEED_BITS = 31
"""Bits of a fresh seed, as of derived ones."""


def load_plan(
    paths: Sequence[Path | str],
    overrides: Sequence[str] = (),
    seed: int | None = None,
    options: LoadOptions = AS_IT_STANDS,
    fresh_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS),
) -> Plan:
    """Read experiment files and plan their trials.

    Args:
        paths: experiment files; their order is the order of the trials.
        overrides: ``key.path=value`` each, laid over every experiment; later ones win.
        seed: as the override ``config.seed``.
        options: how to read them.
        fresh_seed: gives the seed of an experiment that names none.

    Raises:
        ConfigError: with every problem of every file, by position.

    """
    drafts = load_drafts(paths, overrides, seed, options)
    files = tuple(Path(path) for path in paths)
    folders = folders_for(files) if options.module_folders is None else options.module_folders
    return planned(drafts, files, UserModules(options.imports, folders), fresh_seed)


def load_drafts(
    paths: Sequence[Path | str],
    overrides: Sequence[str] = (),
    seed: int | None = None,
    options: LoadOptions = AS_IT_STANDS,
) -> list[Draft]:
    """Read experiment files, without deciding their seeds and names; raises ConfigError as ``load_plan`` does."""
    laid_over, findings = parse_overrides(overrides, seed, options.flags)
    entries, unreadable = _entries(paths)
    findings += (*unreadable, *_named_twice(entries))
    drafts: list[Draft] = []
    for name, entry in entries:
        draft, wrong = draft_of(name, entry, laid_over, options)
        drafts.extend([draft] if draft else [])
        findings += wrong
    findings += _too_many(drafts)
    if findings:
        raise ConfigError([finding.problem() for finding in _ordered(findings, paths)])
    return drafts


def converted_file(path: Path, options: LoadOptions = AS_IT_STANDS) -> str:
    """Return a file's text in today's spelling; raises ConfigError where it is wrong in any."""
    return converted(load_drafts([path], options=options), read_text(path, str(path)))


def _entries(paths: Sequence[Path | str]) -> tuple[list[tuple[str, Node]], tuple[Finding, ...]]:
    """Return the names and nodes of all experiments of all files."""
    entries: list[tuple[str, Node]] = []
    findings: list[Finding] = []
    for path in paths:
        root, wrong = yaml_file.read_file(Path(path), str(path))
        findings.extend(wrong)
        entries.extend(root.entries().items() if root else ())
        if root and not root.entries():
            findings.append(Finding(Place(str(path)), "holds no experiment"))
    return entries, tuple(findings)


def _named_twice(entries: Iterable[tuple[str, Node]]) -> Iterable[Finding]:
    first_places: dict[str, Place] = {}
    for name, entry in entries:
        first = first_places.setdefault(name, entry.key_place)
        if first is not entry.key_place:
            message = f"experiment {shown_key(name)} stands already at {first}"
            yield Finding(entry.key_place, message, "experiments need different names")


def _too_many(drafts: Iterable[Draft]) -> tuple[Finding, ...]:
    total = 0
    for draft in drafts:
        total += draft.number_of_trials
        if total > MAX_TRIALS:
            message = f"{draft.name} makes it {total} trials, more than {MAX_TRIALS}"
            return (Finding(draft.place, message, "lower num_samples, or search fewer values"),)
    return ()


def _ordered(findings: Iterable[Finding], paths: Sequence[Path | str]) -> list[Finding]:
    """Return findings without repetitions, by file and position; those of the command line last."""
    rank = {str(path): number for number, path in enumerate(paths)}

    def position(finding: Finding) -> tuple[int, int, int]:
        place = finding.place
        return rank.get(place.source, len(rank)), place.line, place.column

    return sorted(dict.fromkeys(findings), key=position)
