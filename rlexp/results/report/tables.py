"""The tables of a report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rlexp.metrics.statistics import Estimate
from rlexp.number_format import count, decimal, duration, exact
from rlexp.results.comparison import ComparedGroup, ComparedTrial, Comparison
from rlexp.results.hyperparameters import MISSING
from rlexp.results.report.charts import colour_class
from rlexp.results.report.markup import Markup, element, joined, table
from rlexp.runs.run_record import RunRecord


def group_label(index: int, group: ComparedGroup) -> Markup:
    """Return a group's letter in its colour and its name."""
    return joined([element("span", group.mark, class_=f"mark {colour_class(index)}"), " ", group.name])


def score_table(comparison: Comparison) -> Markup:
    """Return what each group scored and how sure that is."""
    better = f"P(better than {comparison.groups[0].mark})"
    header = ["group", "seeds", "mean", "IQM", "95 % interval", better, "95 % interval"]
    rows = [tuple(_score_row(index, group, comparison.digits)) for index, group in enumerate(comparison.groups)]
    return table(header, rows, class_="figures")


def goal_table(comparison: Comparison) -> Markup:
    """Return how soon the seeds of each group were at the goal."""
    assert comparison.goal is not None
    header = ["group", f"reached {exact(comparison.goal)}", "median env steps", "median time"]
    rows = []
    for index, group in enumerate(comparison.groups):
        goal = group.goal
        assert goal is not None
        seeds = f"{goal.seeds} of {len(group.trials)}"
        rows.append((group_label(index, group), seeds, count(goal.median_steps), duration(goal.median_seconds)))
    return table(header, rows, class_="figures")


def difference_table(comparison: Comparison) -> Markup:
    """Return the settings that are not the same in all groups, a column per group."""
    if not comparison.differences:
        return element("p", "None, apart from seeds.")
    marks = (
        element("span", group.mark, class_=f"mark {colour_class(index)}", title=group.name)
        for index, group in enumerate(comparison.groups)
    )
    header = ["setting", *marks]
    rows = [
        [element("code", name), *(element("code", group.settings.get(name, MISSING)) for group in comparison.groups)]
        for name in comparison.differences
    ]
    return table(header, rows, class_="facts")


def seed_table(comparison: Comparison) -> Markup:
    """Return a row for every trial."""
    header = ["trial", "group", "seed", "final score", "rows", "env steps", "time", "status"]
    rows = [_seed_row(group, trial, comparison.digits) for group in comparison.groups for trial in group.trials]
    return table(header, rows, class_="seeds")


def environment_table(comparison: Comparison) -> Markup:
    """Return where each run came from, a column per run: what ``run.json`` says."""
    trials = [trial for group in comparison.groups for trial in group.trials]
    runs = {trial.folder.run.path.resolve(): trial.folder.run.record for trial in trials}
    facts = {path.name: _facts(record) for path, record in runs.items() if record is not None}
    if not facts:
        return element("p", "Not known: there is no run.json that can be read.")
    names = dict.fromkeys(name for run in facts.values() for name in run)
    rows = [[name, *(run.get(name, MISSING) for run in facts.values())] for name in names]
    return table(["run", *facts], rows, class_="facts")


def _facts(record: RunRecord) -> dict[str, str]:
    """Return facts as text; ``run.json`` may be a stranger's, so nothing is taken for what it should be."""
    facts = {
        "status": record.status,
        "started": record.started,
        "ended": record.ended,
        "host": record.host,
        "CPUs": record.cpus,
        "git commit": record.git_commit,
        **(record.versions if isinstance(record.versions, dict) else {}),
    }
    shown = {str(name): MISSING if value is None else str(value) for name, value in facts.items()}
    if isinstance(record.command, list):
        shown["command"] = shlex.join(map(str, record.command))
    return shown


def _score_row(index: int, group: ComparedGroup, digits: int) -> Iterator[str]:
    yield group_label(index, group)
    yield count(len(group.trials))
    yield decimal(group.mean, digits)
    yield from _estimate(group.iqm, digits)
    yield from _estimate(group.improvement, 2)


def _estimate(estimate: Estimate | None, digits: int) -> tuple[str, str]:
    if estimate is None:
        return MISSING, MISSING
    if estimate.interval is None:
        return decimal(estimate.value, digits), "one seed"
    low, high = estimate.interval
    return decimal(estimate.value, digits), f"{decimal(low, digits)} to {decimal(high, digits)}"


def _seed_row(group: ComparedGroup, trial: ComparedTrial, digits: int) -> tuple[str, ...]:
    folder, curve = trial.folder, trial.curve
    return (
        f"{folder.run.name}/{folder.path.resolve().name}",
        group.mark,
        MISSING if folder.seed is None else str(folder.seed),
        decimal(trial.score, digits),
        count(len(curve.values)),
        count(float(curve.steps[-1])),
        duration(float(curve.seconds[-1])),
        folder.record.status if folder.record else MISSING,
    )
