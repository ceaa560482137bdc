"""The report of a comparison: one HTML file that needs no other file and no script, or a PNG of its curves.

The PNG needs the extra ``[plot]``.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any, Final

from rlexp.compare.comparison import Comparison
from rlexp.compare.curve import CurveAxis, unit_of
from rlexp.compare.report.charts import axes_of
from rlexp.compare.report.page import report_page, write_report
from rlexp.errors import UsageError
from rlexp.files import replace_bytes
from rlexp.processes.threads import without_current_folder

_COLOURS: Final = ("#0072b2", "#c65a00", "#00805a", "#b0428a", "#8a6d00", "#3d8fc4", "#b3261e", "#5c5c5c")
_DASHES: Final = ("-", "--", ":", "-.")
_INCHES: Final = (12.0, 5.0)
_DOTS_PER_INCH: Final = 150
_MOST_NAMED: Final = 12
"""More groups than these get no legend: it would cover their curves."""


def _require_plot_extra() -> None:
    """Raise UsageError if pictures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        hint = "pip install 'rlexp[plot]'; --html draws the same curves without it"
        raise UsageError("--png needs matplotlib, which is not installed", hint)


def write_picture(comparison: Comparison, path: Path) -> None:
    """Write the curve of each group over env steps and over time; raises UsageError if it cannot be written."""
    _require_plot_extra()
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


__all__ = ["report_page", "write_picture", "write_report"]
