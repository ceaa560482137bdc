"""The videos of compared trials: the newest of each within the report where it is small, the others as links."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rlexp.results.comparison import ComparedGroup, ComparedTrial, Comparison
from rlexp.results.report.markup import Markup, element
from rlexp.runs.videos import FOLDER

_LARGEST_BYTES: Final = 3 * 2**20
_LARGEST_SUM_BYTES: Final = 24 * 2**20
"""Mail and browsers still take a report of this size."""


@dataclass
class _Room:
    """How many bytes of video the report can still take."""

    left: int = _LARGEST_SUM_BYTES


def videos(comparison: Comparison, report_directory: Path) -> Markup | None:
    """Return the videos of all trials; None where there are none. Links are relative to ``report_directory``."""
    room = _Room()
    figures = [
        _figure(group, trial, found, room, report_directory)
        for group in comparison.groups
        for trial in group.trials
        if (found := _found(trial))
    ]
    return element("div", *figures, class_="videos") if figures else None


def _found(trial: ComparedTrial) -> list[Path]:
    """Return a trial's finished videos, oldest first; no links, which could lead to any file."""
    folder = trial.folder.path / FOLDER
    return sorted(path for path in folder.glob("[!.]*.mp4") if path.is_file() and not path.is_symlink())


def _figure(
    group: ComparedGroup, trial: ComparedTrial, found: list[Path], room: _Room, report_directory: Path
) -> Markup:
    *older, newest = found
    caption = f"{group.mark} {group.name}, seed {trial.folder.seed}: {newest.stem}"
    shown = _embedded(newest, room) or _link(newest, "this one, beside the report", report_directory)
    links = list(_links(older, report_directory))
    return element("figure", shown, element("figcaption", caption, *links))


def _embedded(path: Path, room: _Room) -> Markup | None:
    size = path.stat().st_size
    if size > min(_LARGEST_BYTES, room.left):
        return None
    room.left -= size
    source = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return element("video", src=source, controls="", muted="", loop="", preload="metadata")


def _links(paths: list[Path], report_directory: Path) -> Iterator[str]:
    for number, path in enumerate(paths):
        yield ", " if number else ". Older: "
        yield _link(path, path.stem, report_directory)


def _link(path: Path, text: str, report_directory: Path) -> Markup:
    relative = os.path.relpath(path.resolve(), report_directory.resolve())
    return element("a", text, href=quote(relative))
