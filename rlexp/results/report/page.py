"""The page of a report: what was compared, how sure it is, in what the groups differ, and where it all ran."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Final

from rlexp import __version__
from rlexp.errors import UsageError
from rlexp.json_file import replace_text
from rlexp.metrics.bootstrap import RESAMPLES
from rlexp.results.comparison import Comparison
from rlexp.results.report.charts import curves, scores
from rlexp.results.report.markup import Markup, document, element, style
from rlexp.results.report.tables import (
    difference_table,
    environment_table,
    goal_table,
    group_label,
    score_table,
    seed_table,
)
from rlexp.results.report.videos import videos

_STYLE_FILE: Final = "style.css"
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; media-src data:"
"""Should anything slip into the page: a browser runs no script in it and loads nothing from elsewhere."""
_METHOD: Final = (
    "The IQM, or interquartile mean, is the mean of the middle half of the seeds' final scores. Its 95 % interval is "
    f"that of a percentile bootstrap: seeds are drawn again {RESAMPLES:,} times within each environment. P(better than "
    "A) is how often a run of the group scores better than one of the first group, ties counting half; 0.5 is no "
    "difference, and an interval around 0.5 means that these seeds cannot tell the two apart. It needs two seeds in "
    "both groups. With fewer than five seeds per group intervals are too narrow: [1.00, 1.00] then only says that "
    "every seed here was better. Bands are intervals of each point alone. All as in Agarwal et al., Deep Reinforcement "
    "Learning at the Edge of the Statistical Precipice, NeurIPS 2021."
)


def write_report(comparison: Comparison, path: Path, written: datetime) -> None:
    """Write the report to ``path``, whole or not at all; raises UsageError where it cannot be written."""
    try:
        replace_text(path, report_page(comparison, path.parent, written))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {path}: {reason}", "--html takes the file to write") from error


def report_page(comparison: Comparison, report_directory: Path, written: datetime) -> str:
    """Return a comparison as one HTML page without scripts; it loads nothing.

    Small videos are within it; links to others are relative to ``report_directory``, where it will lie.
    """
    css = files("rlexp.results.report").joinpath(_STYLE_FILE).read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", comparison.title),
        style(css),
    )
    body = element("body", element("main", *_heading(comparison, written), *_sections(comparison, report_directory)))
    return document(head, body)


def _heading(comparison: Comparison, written: datetime) -> Iterator[Markup]:
    groups, trials = len(comparison.groups), comparison.num_trials
    yield element("h1", comparison.title)
    yield element(
        "p",
        f"{_counted(groups, 'group')}, {_counted(trials, 'trial')}, compared by {comparison.metric}. "
        f"Written {written:%Y-%m-%d %H:%M} by rlexp {__version__}.",
        class_="quiet",
    )
    if comparison.notices:
        lines = [element("p", f"{notice.where}: {notice.message}") for notice in comparison.notices]
        yield element("div", *lines, class_="notices")


def _sections(comparison: Comparison, report_directory: Path) -> Iterator[Markup]:
    legend = [element("span", group_label(index, group)) for index, group in enumerate(comparison.groups)]
    if comparison.window is not None:
        legend.append(element("span", "grey band: the steps over which final scores are taken"))
    yield element("h2", f"{comparison.metric}: IQM over seeds with 95 % intervals")
    yield element("div", *legend, class_="legend")
    yield element("div", curves(comparison), class_="scrolling")
    yield element("h2", "Final scores")
    yield element("p", f"{comparison.scoring} Dots are seeds, bars the IQM and its 95 % interval.")
    yield element("div", scores(comparison), class_="scrolling")
    yield score_table(comparison)
    if comparison.goal is not None:
        yield goal_table(comparison)
    yield element("p", _METHOD, class_="quiet")
    yield element("h2", "Settings that differ")
    yield difference_table(comparison)
    yield element("h2", "Seeds")
    yield seed_table(comparison)
    found = videos(comparison, report_directory)
    if found is not None:
        yield element("h2", "Videos")
        yield found
    yield element("h2", "Where it ran")
    yield environment_table(comparison)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
