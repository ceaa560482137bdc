"""A sweep that was stopped or killed, as it was then: its journal is gone through once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.config.variants.sweep import Sweep
from rlexp.errors import ConfigError
from rlexp.runs.run_record import Status, TrialError
from rlexp.search.journal import Event, damaged, read_events
from rlexp.search.searchers import make_searcher
from rlexp.search.state import SearchState
from rlexp.search.trial_scheduler import Exploit


@dataclass(frozen=True)
class Restored:
    """What a journal says."""

    state: SearchState
    """As it was after the last event: what was running then still counts as running."""
    elapsed_s: float
    """For how long the sweep ran."""
    exploited: tuple[tuple[Trial, str], ...]
    """Trials with their new keys, and the checkpoint (relative to the run) that each is to continue from, where they
    have not begun since."""


def restored(sweep: Sweep, run_directory: Path) -> Restored:
    """Return the state of a sweep whose axes are in the order of the journal's heading.

    Raises ResumeError where the journal is missing or damaged, or does not fit the sweep.
    """
    replay = _Replay(sweep)
    for line, event in read_events(run_directory):
        try:
            replay.take(event)
        except (LookupError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise damaged(run_directory, line, error) from error
    return Restored(replay.state, replay.elapsed_s, tuple(replay.exploited.values()))


class _Replay:
    def __init__(self, sweep: Sweep) -> None:
        self.state = SearchState(sweep, make_searcher(sweep))
        self.elapsed_s = 0.0
        self.exploited: dict[str, tuple[Trial, str]] = {}
        self._sweep = sweep
        self._trials: dict[str, Trial] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case Event.CONFIGURED:
                self._configured(event["number"], event["point"], event["refused"])
            case Event.BEGUN:
                self.exploited.pop(event["trial"], None)
                self.state.begun(self._trials[event["trial"]])
            case Event.REPORTED:
                self._reported(event["trial"], event["row"], event["is_last"], event["checkpoint"])
            case Event.EXPLOITED:
                self._exploited(Exploit(**event["exploit"]))
            case Event.ENDED:
                self._ended(event["trial"], Status(event["status"]), event["error"])
            case other:
                raise ValueError(f"there is no event {other!r}")
        self.elapsed_s = float(event["elapsed_s"])

    def _configured(self, number: int, point: Mapping[str, Any], refused: str | None) -> None:
        if number != self.state.configurations:
            raise ValueError(f"configuration {number} comes where {self.state.configurations} should")
        self.state.searcher.recall(number, point)
        if refused is not None:
            self.state.refused(refused)
            return
        trials = self._sweep.trials(number, point)
        self._trials |= {trial.name: trial for trial in trials}
        self.state.configured(self._sweep.point_of(trials[0]), trials)

    def _reported(self, name: str, row: Mapping[str, Any], is_last: bool, checkpoint: str | None) -> None:
        if checkpoint is not None:
            _refuse_elsewhere(checkpoint)
        self.state.reported(self._trials[name], row, is_last, checkpoint)

    def _exploited(self, exploit: Exploit) -> None:
        _refuse_elsewhere(exploit.checkpoint)
        changed = self._sweep.changed(self._trials[exploit.trial], exploit.after)
        self._trials[exploit.trial] = changed
        self.exploited[exploit.trial] = changed, exploit.checkpoint
        self.state.exploited(replace(exploit, after=self._sweep.point_of(changed)), changed)

    def _ended(self, name: str, status: Status, error: Mapping[str, Any] | None) -> None:
        self.state.ended(self._trials[name], status, None if error is None else TrialError(**error))


def _refuse_elsewhere(checkpoint: str) -> None:
    """Raise ValueError for a path that would lead out of the run: a journal may come from anywhere."""
    parts = Path(checkpoint).parts
    if len(parts) != 2 or ".." in parts or Path(checkpoint).is_absolute():
        raise ValueError(f"{checkpoint!r} is not a checkpoint of a trial")
