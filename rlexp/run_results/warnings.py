"""The warnings of a comparison: what limits its conclusions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from rlexp.errors import Notice
from rlexp.processes.locks import RUN_FILE
from rlexp.run_results.axis import Axis, amount
from rlexp.run_results.group import Group, SettingsReader, differing
from rlexp.run_results.scoring import Curves, Request, failed
from rlexp.run_results.trial_folder import RESULT_FILE

_SHORT_SHARE: Final = 0.8
"""A trial that ends before this part of the longest one gets a warning: the comparison ends with it."""
_NAMES_SHOWN: Final = 4


def warnings_of(
    groups: Sequence[Group], scored: Sequence[Group], curves: Curves, reader: SettingsReader, request: Request
) -> Iterator[Notice]:
    """Yield what cannot be read, what ends early, which groups mix different settings, and which have a single seed.

    ``scored`` are the groups with the trials that have scores.
    """
    yield from _unreadable(groups, curves)
    if request.at is None:
        yield from _short(scored, curves, request.axis)
    yield from _mixed(scored, reader)
    yield from _single(groups, scored)


def _unreadable(groups: Sequence[Group], curves: Curves) -> Iterator[Notice]:
    trials = [trial for group in groups for trial in group.trials]
    for run in dict.fromkeys(trial.run for trial in trials):
        if run.problem is not None and os.path.exists(run.path / RUN_FILE):
            yield Notice(str(run.path), f"{run.problem}; its trials are read from their own files")
    for trial in trials:
        curve = curves[trial]
        if curve.damaged_lines:
            lines = "1 line" if curve.damaged_lines == 1 else f"{curve.damaged_lines} lines"
            yield Notice(str(trial.path / RESULT_FILE), f"{lines} cannot be read and are left out")
        if curve.problem is not None:
            yield Notice(str(trial.path / RESULT_FILE), f"cannot be read and is left out: {curve.problem}")
        elif not len(curve.values) and not failed(trial):
            yield Notice(str(trial.path), "has not reported the metric and is left out")


def _short(groups: Sequence[Group], curves: Curves, axis: Axis) -> Iterator[Notice]:
    ends = {trial: float(curves[trial].along(axis)[-1]) for group in groups for trial in group.trials}
    first, longest = min(ends, key=lambda trial: ends[trial]), max(ends.values())
    if ends[first] < _SHORT_SHARE * longest:
        status = f" ({first.record.status})" if first.record else ""
        yield Notice(
            str(first.path),
            f"ends at {amount(ends[first], axis)}{status} of {amount(longest, axis)} {axis.label}: "
            "final scores of all trials are taken there",
        )


def _mixed(groups: Sequence[Group], reader: SettingsReader) -> Iterator[Notice]:
    for group in groups:
        names = differing([reader.settings(trial) for trial in group.trials])
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            yield Notice(group.name, f"pools trials that differ in {', '.join(names[:_NAMES_SHOWN])}{more}")
    envs = sorted({trial.env for group in groups for trial in group.trials})
    if len(envs) > 1:
        yield Notice(", ".join(envs), "are different environments; their scores have different scales")


def _single(groups: Sequence[Group], scored: Sequence[Group]) -> Iterator[Notice]:
    sizes = {group.name: len(group.trials) for group in groups}
    single = [group.name for group in scored if len(group.trials) == 1]
    alone = [name for name in single if sizes[name] == 1]
    left = [name for name in single if sizes[name] > 1]
    if alone:
        where = "all groups" if 1 < len(scored) == len(alone) else _some(alone)
        yield Notice(where, "only one seed per group, so no interval; run more seeds")
    if left:
        yield Notice(_some(left), "only one seed has a score, so no interval; the others ended before these steps")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return "; ".join(names[:_NAMES_SHOWN]) + more
