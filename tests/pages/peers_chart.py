"""The bar chart of the README: seconds to a reward, read from the tables of ``docs/ppo.md`` and drawn as SVG.

The figures are written once, in the page; ``make pictures PICTURES=peers`` draws them again after a new measurement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from tests.pages.page_folder import REPOSITORY

PICTURE: Final = REPOSITORY / "docs" / "images" / "peers.svg"
_PAGE: Final = REPOSITORY / "docs" / "ppo.md"
_HEADER: Final = re.compile(
    r"^\| (?P<task>\S+) to (?P<goal>\S+), medians of (?P<seeds>\w+) seeds \| seconds \|", re.MULTILINE
)
_PROGRAMS: Final = {"`rlexp run": "rlexp run", "Stable-Baselines3": "Stable-Baselines3"}
"""How the rows that are drawn begin, and what their bars are called."""
_CLASSES: Final = {"rlexp run": "ours", "Stable-Baselines3": "theirs"}
_WIDTH, _LEFT, _BAR, _GAP = 720, 160, 24, 10


@dataclass(frozen=True)
class Group:
    """A task with the seconds of each program, in the order of the page."""

    title: str
    seconds: dict[str, float]


def groups_of(page: str) -> list[Group]:
    """Return the groups that a page's tables have; raises ValueError if a table lacks one of the programs."""
    groups = []
    for header in _HEADER.finditer(page):
        rows = page[header.end() :].partition("\n\n")[0]
        seconds = {
            name: float(match[1])
            for start, name in _PROGRAMS.items()
            if (match := re.search(rf"^\| {re.escape(start)}[^|]*\| ([\d.]+) \|", rows, re.MULTILINE))
        }
        title = f"{header['task']}, mean return {header['goal']}, medians of {header['seeds']} seeds"
        if seconds.keys() != _CLASSES.keys():
            raise ValueError(f"{title}: the table has {', '.join(seconds) or 'no program'}")
        groups.append(Group(title, seconds))
    return groups


def chart(groups: list[Group]) -> str:
    """Return the SVG: a bar for each program of each group, on a card that is dark on dark pages."""
    longest = max(seconds for group in groups for seconds in group.seconds.values())
    scale = (_WIDTH - _LEFT - 90) / longest
    parts, y = [], 30
    for group in groups:
        parts.append(_text(20, y, group.title, "title"))
        y += 14
        for name, seconds in group.seconds.items():
            width = round(seconds * scale, 1)
            parts.append(_text(_LEFT - 10, y + 17, name, "name"))
            bar = f'<rect class="{_CLASSES[name]}" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" rx="3"/>'
            parts.append(bar)
            parts.append(_text(_LEFT + width + 8, y + 17, f"{seconds:g} s", "value"))
            y += _BAR + _GAP
        y += 26
    return _card("\n".join(parts), y - 26)


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _card(content: str, height: int) -> str:
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="seconds to a reward">
<style>
text {{ font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 15px; fill: #24292f }}
.ours {{ fill: #3f51b5 }} .theirs {{ fill: #9aa0a6 }}
.title {{ font-weight: 600 }} .name {{ text-anchor: end }} .value {{ fill: #57606a }} .card {{ fill: #ffffff }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6ebf0 }} .value {{ fill: #aab6c2 }} .card {{ fill: #161b22 }} .ours {{ fill: #7986cb }}
}}
</style>
<rect class="card" width="{_WIDTH}" height="{height}" rx="8"/>
{content}
</svg>
"""


def drawn_chart() -> str:
    """Return the chart of the figures that the page has now."""
    return chart(groups_of(_PAGE.read_text(encoding="utf-8")))
