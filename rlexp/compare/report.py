"""The report of a comparison: one HTML file that needs no other file and no script, or a PNG of its curves.

``page.html`` of ``templates`` is filled with a comparison, its charts, where its runs ran, and the newest video of each
trial, inside it if it is small, else as a link. The PNG needs the extra ``[plot]``.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import shlex
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from rlexp import __version__
from rlexp.compare.charts import CurvesChart, axes_of, colour_class, dashes, scores_frame
from rlexp.compare.comparison import ComparedTrial, Comparison
from rlexp.compare.curve import CurveAxis, place, unit_of
from rlexp.compare.sweep_charts import SweepSection
from rlexp.errors import UsageError
from rlexp.files import read_regular, replace_bytes, replace_text
from rlexp.metrics import RESAMPLES
from rlexp.processes.threads import without_current_folder
from rlexp.runs.record import RunRecord
from rlexp.runs.trial_files import FOLDER
from rlexp.text import MISSING, count, decimal, duration, exact, percent, score, value_words

if TYPE_CHECKING:
    from jinja2 import Environment

_LARGEST_BYTES: Final = 3 * 2**20
_LARGEST_SUM_BYTES: Final = 24 * 2**20
"""Mail programs and browsers still accept a report of this size."""


@dataclass(frozen=True)
class TrialVideos:
    """The videos of a trial."""

    caption: str
    source: str | None
    """The newest video, as a URL with its data; None if it is too large."""
    link: str
    """The newest video."""
    older: list[tuple[str, str]]
    """Names and links of older videos."""


def videos_of(comparison: Comparison, report_directory: Path) -> list[TrialVideos]:
    """Return the videos of the trials that have some; links are relative to ``report_directory``."""
    room, videos = _LARGEST_SUM_BYTES, []
    for group in comparison.groups:
        for trial in group.trials:
            found = _found(trial)
            if not found:
                continue
            *older, newest = found
            size = newest.stat().st_size
            embedded = size <= min(_LARGEST_BYTES, room)
            room -= size if embedded else 0
            caption = f"{group.mark} {group.name}, seed {trial.folder.seed}: {newest.stem}"
            source = _data_url(newest) if embedded else None
            links = [(path.stem, _link(path, report_directory)) for path in older]
            videos.append(TrialVideos(caption, source, _link(newest, report_directory), links))
    return videos


def _found(trial: ComparedTrial) -> list[Path]:
    """Return a trial's finished videos, oldest first; no links, which could point to any file."""
    folder = trial.folder.path / FOLDER
    return sorted(path for path in folder.glob("[!.]*.mp4") if path.is_file() and not path.is_symlink())


def _data_url(path: Path) -> str:
    return f"data:video/mp4;base64,{base64.b64encode(read_regular(path)).decode()}"


def _link(path: Path, report_directory: Path) -> str:
    return quote(os.path.relpath(path.resolve(), report_directory.resolve()))


_MOST_OF_SWEEP: Final = 12
"""Most configurations of a sweep with a curve, seeds and settings in the page."""
_UNPRINTABLE: Final = "\ufffd"


def write_report(comparison: Comparison, path: Path, written: datetime) -> None:
    """Write the report to ``path``, whole or not at all; raises UsageError if it cannot be written."""
    try:
        replace_text(path, report_page(comparison, path.parent, written))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {path}: {reason}", "--html takes the file to write") from error


def report_page(comparison: Comparison, report_directory: Path, written: datetime) -> str:
    """Return a comparison as one HTML page without scripts; it loads nothing.

    Small videos are within it; links to others are relative to ``report_directory``, where it will be.
    """
    page, facts = _templates().get_template("page.html"), _facts_by_run(comparison)
    number_of_groups, number_of_trials = len(comparison.groups), comparison.num_trials
    if comparison.sweep is not None:  # its groups are in the order of the ranking; trials.csv has all
        comparison = replace(comparison, groups=comparison.groups[:_MOST_OF_SWEEP])
    return page.render(
        comparison=comparison,
        number_of_groups=number_of_groups,
        number_of_trials=number_of_trials,
        sweep=None if comparison.sweep is None else SweepSection(comparison.sweep, comparison.importance),
        curves_charts=[CurvesChart(comparison, axis) for axis in axes_of(comparison)],
        scores_frame=scores_frame(comparison),
        videos=videos_of(comparison, report_directory),
        facts=facts,
        fact_names=list(dict.fromkeys(name for run in facts.values() for name in run)),
        written=written,
        version=__version__,
        resamples=RESAMPLES,
        missing=MISSING,
    )


def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only a command that writes a report needs it

    environment = Environment(
        loader=PackageLoader("rlexp.compare", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "colour": colour_class,
        "count": count,
        "dashes": dashes,
        "decimal": decimal,
        "duration": duration,
        "exact": exact,
        "percent": percent,
        "place": place,
        "score": score,
        "words": value_words,
    }
    return environment


def _printable(value: Any) -> Any:
    """Return text with its control characters visible: they could hide other characters or reverse their order."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else _UNPRINTABLE for c in value)


def _facts_by_run(comparison: Comparison) -> dict[str, dict[str, str]]:
    """Return the facts in ``run.json`` about where each run ran."""
    trials = [trial for group in comparison.groups for trial in group.trials]
    runs = {trial.folder.run.path.resolve(): trial.folder.run.record for trial in trials}
    return {path.name: _facts(record) for path, record in runs.items() if record is not None}


def _facts(record: RunRecord) -> dict[str, str]:
    """Return facts as text; ``run.json`` may come from anyone, so their types are not trusted."""
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


_COLOURS: Final = ("#0072b2", "#c65a00", "#00805a", "#b0428a", "#8a6d00", "#3d8fc4", "#b3261e", "#5c5c5c")
_DASHES: Final = ("-", "--", ":", "-.")
_INCHES: Final = (12.0, 5.0)
_DOTS_PER_INCH: Final = 150
_MOST_NAMED: Final = 12
"""More groups than these get no legend: it would cover their curves."""


def write_picture(comparison: Comparison, path: Path) -> None:
    """Write the curve of each group over env steps and over time; raises UsageError if it cannot be written."""
    if importlib.util.find_spec("matplotlib") is None:
        hint = "pip install 'rlexp[plot]'; --html draws the same curves without it"
        raise UsageError("--png needs matplotlib, which is not installed", hint)
    with without_current_folder():  # matplotlib obeys a matplotlibrc there
        from matplotlib.figure import Figure  # its object interface: no display, no state

    axes_drawn = axes_of(comparison)
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    for axes, axis in zip(figure.subplots(1, len(axes_drawn), sharey=True), axes_drawn, strict=True):
        _draw(axes, comparison, axis)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(_literal(comparison.metric))
    figure.suptitle(_literal(f"{comparison.title}\n{comparison.what_curves_show}"))
    if len(comparison.groups) <= _MOST_NAMED:
        figure.axes[0].legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    try:
        replace_bytes(path, content.getvalue())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "--png takes the file to write") from error


def _draw(axes: Any, comparison: Comparison, axis: CurveAxis) -> None:
    """Draw every group's curve and interval along env steps or time."""
    bands = [group.band_along(axis) for group in comparison.groups]
    unit = unit_of(axis, max(float(band.x[-1]) for band in bands))
    for index, (group, band) in enumerate(zip(comparison.groups, bands, strict=True)):
        x, colour = band.x / unit.size, _COLOURS[index % len(_COLOURS)]
        dashes = _DASHES[index // len(_COLOURS) % len(_DASHES)]
        axes.plot(x, band.middle, dashes, color=colour, label=_literal(f"{group.mark} {group.label}"))
        if len(group.trials) > 1:
            axes.fill_between(x, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
    axes.set_xlabel(unit.label)


def _literal(text: str) -> str:
    """Return a name that matplotlib does not parse as a formula."""
    return text.replace("$", r"\$")
