"""The report of a comparison: one HTML file that needs no other file and no script, or a PNG of its curves.

``page.html`` of ``templates`` is filled with a comparison, where its runs ran, and the newest video of each trial,
inside it if it is small, else as a link. ``charts.html`` draws the curves of groups and the final scores of seeds as
SVG, at places that are computed here; units are a frame's width and height. The PNG needs the extra ``[plot]``.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np

from rlexp import __version__
from rlexp.compare.comparison import ComparedGroup, ComparedTrial, Comparison
from rlexp.compare.curve import ROOM, CurveAxis, Frame, amount, limits, place, unit_of
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

_COLOURS: Final = ("#0072b2", "#c65a00", "#00805a", "#b0428a", "#8a6d00", "#3d8fc4", "#b3261e", "#5c5c5c")
"""Colours of groups; the style sheet has as many, ``c0`` to ``c7``. Later groups are dashed as well."""
_DASHES: Final = ((None, "-"), ("7 4", "--"), ("2 3", ":"), ("9 3 2 3", "-."))
_CURVES_HEIGHT: Final = 400
_ROW_HEIGHT: Final = 34
_SCORES_MARGIN: Final = 56
_LINE_HEIGHT: Final = 14
_POINTS: Final = 25
"""Points with a tooltip along each curve."""


def colour_class(index: int) -> str:
    """Return the class of the style sheet that gives group number ``index`` its colour."""
    return f"c{index % len(_COLOURS)}"


def dashes(index: int) -> tuple[str | None, str]:
    """Return the dashes of the curve of group number ``index`` in SVG, None for a solid line, and for matplotlib."""
    return _DASHES[index // len(_COLOURS) % len(_DASHES)]


class CurvesChart:
    """The IQM over seeds of each group along env steps or time, with its pointwise interval."""

    def __init__(self, comparison: Comparison, axis: CurveAxis) -> None:
        self._comparison = comparison
        self._axis = axis
        self.bands = {group: group.band_along(axis) for group in comparison.groups}
        bands = [*self.bands.values()]
        self.unit = unit_of(axis, max(float(band.x[-1]) for band in bands))
        x_limits = limits(band.x / self.unit.size for band in bands)
        y_limits = limits((values for band in bands for values in (band.low, band.high)), ROOM)
        self.frame = Frame(_CURVES_HEIGHT, x_limits, y_limits)

    def window(self) -> tuple[float, float] | None:
        """Return left end and width of the part where final scores are taken."""
        window = self._comparison.window
        if window is None or self._axis is not self._comparison.axis:
            return None
        ends = np.array([window.start, window.end]) / self.unit.size
        left, right = self.frame.x(np.clip(ends, *self.frame.x_limits)).tolist()
        return left, right - left

    def band(self, group: ComparedGroup) -> str:
        """Return the outline of a group's interval, as SVG's ``points``."""
        band = self.bands[group]
        x = band.x / self.unit.size
        return self.frame.points(np.concatenate([x, x[::-1]]), np.concatenate([band.high, band.low[::-1]]))

    def line(self, group: ComparedGroup) -> str:
        """Return a group's curve, as SVG's ``points``."""
        return self.frame.points(self.bands[group].x / self.unit.size, self.bands[group].middle)

    def ends(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield each group's number, and place and text of the label at the end of its curve, from top to bottom.

        Labels that would overlap are moved apart.
        """
        groups = self._comparison.groups
        last = [(float(self.bands[group].x[-1]), float(self.bands[group].middle[-1])) for group in groups]
        tops = [float(self.frame.y(value)) for _, value in last]
        lowest = float("-inf")
        for index in sorted(range(len(tops)), key=lambda index: tops[index]):
            lowest = max(tops[index], lowest + _LINE_HEIGHT)
            left = float(self.frame.x(last[index][0] / self.unit.size)) + 6
            yield index, place(left), place(lowest), f"{groups[index].mark} {score(last[index][1])}"

    def points(self, group: ComparedGroup) -> Iterator[tuple[str, str, str]]:
        """Yield place and tooltip of points along a group's curve."""
        band, size = self.bands[group], self.unit.size
        for at in np.linspace(0, len(band.x) - 1, _POINTS).round().astype(int):
            x, middle, low, high = (float(values[at]) for values in (band.x, band.middle, band.low, band.high))
            interval = f" [{score(low)}, {score(high)}]" if len(group.trials) > 1 else ""
            where = f"{amount(x / size, self._axis)} {self.unit.label}"
            text = f"{group.mark} {group.name}\n{where}: {score(middle)}{interval}"
            yield place(self.frame.x(x / size)), place(self.frame.y(middle)), text


def curves_charts(comparison: Comparison) -> list[CurvesChart]:
    """Return its curves along its own axis, and along the other one."""
    axes = sorted(CurveAxis, key=lambda axis: axis is not comparison.axis)
    return [CurvesChart(comparison, axis) for axis in axes]


def scores_frame(comparison: Comparison) -> Frame:
    """Return the frame of the seeds' final scores, a row per group."""
    groups = comparison.groups
    scores = [np.array([trial.score for trial in group.trials]) for group in groups]
    # As wide as the curves are high, so that dots that only noise separates are close here too.
    trained = [values for group in groups for values in (group.band.low, group.band.high)]
    height = _SCORES_MARGIN + _ROW_HEIGHT * len(groups)
    return Frame(height, limits([*scores, *trained], ROOM), (len(groups) - 0.5, -0.5))


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
            content = base64.b64encode(read_regular(newest)).decode() if embedded else None
            source = None if content is None else f"data:video/mp4;base64,{content}"
            links = [(path.stem, _link(path, report_directory)) for path in older]
            videos.append(TrialVideos(caption, source, _link(newest, report_directory), links))
    return videos


def _found(trial: ComparedTrial) -> list[Path]:
    """Return a trial's finished videos, oldest first; no links, which could point to any file."""
    folder = trial.folder.path / FOLDER
    return sorted(path for path in folder.glob("[!.]*.mp4") if path.is_file() and not path.is_symlink())


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
        curves_charts=curves_charts(comparison),
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
    environment.filters |= {each.__name__: each for each in (count, decimal, duration, exact, percent, place, score)}
    own = {"colour": colour_class, "dashes": lambda index: dashes(index)[0], "words": value_words}
    environment.filters |= own
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

    charts = curves_charts(comparison)
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), sharey=True), charts, strict=True):
        _draw(axes, chart)
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


def _draw(axes: Any, chart: CurvesChart) -> None:
    """Draw every group's curve and interval."""
    for index, (group, band) in enumerate(chart.bands.items()):
        x, colour, label = band.x / chart.unit.size, _COLOURS[index % len(_COLOURS)], f"{group.mark} {group.label}"
        axes.plot(x, band.middle, dashes(index)[1], color=colour, label=_literal(label))
        if len(group.trials) > 1:
            axes.fill_between(x, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
    axes.set_xlabel(chart.unit.label)


def _literal(text: str) -> str:
    """Return a name that matplotlib does not parse as a formula."""
    return text.replace("$", r"\$")
