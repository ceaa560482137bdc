"""What the command sends to a tracker's process, a line of JSON each, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The messages to the process (the first four), and those to the command."""

    BEGIN = "begin"
    """A TrackedTrial: it begins, is resumed, or continues with other keys."""
    ROW = "row"
    """A TrackedRow."""
    END = "end"
    """``trial``, ``status`` and ``score``: a trial has ended."""
    FINISH = "finish"
    """Nothing more will come."""

    READY = "ready"
    """``places``: where it will record, in words. The answer to the request."""
    REFUSED = "refused"
    """``message`` and ``hint``: why it cannot record. The answer to the request, instead of READY."""
    NOTE = "note"
    """``text``, for the user."""
    HANDLED = "handled"
    """One message more is recorded, or has failed."""
    DONE = "done"
    """Everything is recorded."""


@dataclass(frozen=True)
class TrackedTrial:
    """A trial as a tracker shows it."""

    name: str
    run: str
    """The name of the run of rlexp."""
    agent: str
    env: str
    folder: str
    """The directory of the trial."""
    run_folder: str
    """That of the run."""
    config: Mapping[str, Any]
    """Every key with its value, as nested mappings; secrets are masked."""
    varied: Mapping[str, Any]
    """What the trials of the run differ in, and its value here."""
    options: Mapping[str, Any]
    """What its experiment has under ``track.NAME``."""
    versions: Mapping[str, str | None]
    """Of rlexp, Python and the packages that decide a result."""
    git_commit: str | None
    """Of the folder in which the command was started."""


@dataclass(frozen=True)
class TrackedRow:
    """The numbers of a result row."""

    trial: str
    steps: int
    """``timesteps_total``."""
    time_s: float
    """When it was made, in seconds since 1970."""
    values: Mapping[str, float]
    """By their flat names: ``info/learner/loss``."""
