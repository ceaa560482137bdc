"""The videos of compared trials: the newest of each in the report if it is small, the others as links."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rlexp.files import read_regular
from rlexp.run_results.comparison import ComparedTrial, Comparison
from rlexp.runs.trial_files import FOLDER

_LARGEST_BYTES: Final = 3 * 2**20
_LARGEST_SUM_BYTES: Final = 24 * 2**20
"""Mail programs and browsers still accept a report of this size."""


@dataclass(frozen=True)
class TrialVideos:
    """The videos of a trial."""

    caption: str
    source: str | None
    """The newest, as a URL with its data; None if it is too large."""
    link: str
    """The newest."""
    older: list[tuple[str, str]]
    """Names and links."""


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
