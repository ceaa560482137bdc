"""The protocol of a display: the events of a run or a sweep while it lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RunRecord, Status
from rlexp.search.standings import Standings


class Display(Protocol):
    """Shows a run: progress on stderr, its outcome on stdout. A context manager that restores the terminal."""

    def follow(self, standings: Standings) -> None:
        """Show the standings of a sweep; called before ``start``, which then has no trials yet."""

    def on_phase(self, trial: Trial | None, text: str) -> None:
        """Show what a trial's process does between two results, or what the command itself does.

        Also called before ``start``, and at the end.
        """

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Show that the run begins."""

    def on_trial_start(self, trial: Trial) -> None:
        """Show that the trial has its resources and begins, or begins again."""

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Show a result row: flat except the dict ``info``."""

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Show an event: of the trial, such as a replaced worker, or between trials."""

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Show that the trial ended, with a sentence if there is more to say."""

    def on_stop_request(self) -> None:
        """Note that the run was asked to save and end; the next tick shows it.

        Called from a signal handler, which may interrupt a write to the same stream, so it must not write.
        """

    def tick(self) -> None:
        """Redraw; the runner calls this some five times a second."""

    def finish(self, run: RunRecord) -> None:
        """Show the outcome of the run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
