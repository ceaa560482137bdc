"""ConfirmedSearch: a search, and after it a second one over its best configurations, with seeds that it did not use.

The second one has its own journal and tables, in ``confirmation``; its trials have their directories beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Sweep
from rlexp.errors import ResumeError
from rlexp.runs.record import RecordedError, Status
from rlexp.search.ranking import CONFIRMATION_FOLDER, Tier, surest
from rlexp.search.record import JOURNAL_FILE, Heading, Journal, SearchRecord
from rlexp.search.search import Search
from rlexp.search.searchers import PlannedSearcher
from rlexp.search.standings import Standings
from rlexp.search.state import Restored, SearchState, restored
from rlexp.search.trial_source import Decision, Ending, TrialSource

_UNFINISHED: Final = f".{CONFIRMATION_FOLDER}.writing"
MakeSearch = Callable[[SearchState, Journal], Search]


class ConfirmedSearch(TrialSource):
    """Owns the journal of the confirmation; passes each call to the running search.

    The confirmation begins when the search is complete, unless its time was over or no configuration has completed.
    """

    def __init__(
        self, search: Search, state: SearchState, folder: Path, heading: Heading, make_search: MakeSearch
    ) -> None:
        """``state`` belongs to ``search`` in the run's ``folder``; ``make_search`` returns another search there."""
        self.search = search
        self.milestones = search.milestones
        self.deadline_s = search.deadline_s
        # The confirmation has the same, as its sweep differs in scheduler, seeds and time budget only.
        self.hparams_metrics = search.hparams_metrics
        self.hang_timeout_s = search.hang_timeout_s
        self.reuses_processes = search.reuses_processes
        self._folder = folder
        self._state = state
        self._heading = heading
        self._make_search = make_search
        self.confirmation: Search | None = None
        self._resources = ExitStack()

    def resume(self, past: Restored) -> Search:
        """Continue a confirmation that had begun; return it."""
        journal = Journal(self._folder / CONFIRMATION_FOLDER, past.elapsed_s)
        return self._begin(past.state, self._resources.enter_context(journal), past.elapsed_s)

    @property
    def standings(self) -> Standings:
        """The search's standings, which include the confirmation's."""
        return self.search.standings

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        if self.confirmation is not None:
            return self.confirmation.is_complete
        return self.search.is_complete and to_confirm(self._state) is None

    @property
    def finished(self) -> bool:
        self._confirm_when_due()
        if self.confirmation is not None:
            return self.confirmation.finished
        return self.search.finished and (self.search.is_over_time or self.search.is_complete)

    def next(self) -> Trial | None:
        self._confirm_when_due()
        return self._now.next()

    def on_start(self, trial: Trial) -> None:
        self._now.on_start(trial)

    def on_result(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Decision:
        return self._now.on_result(trial, row, checkpoint)

    def next_paused(self, paused: Sequence[Trial]) -> Trial | None:
        return self._now.next_paused(paused)

    def stopped(self, paused: Sequence[Trial]) -> list[Trial]:
        return self._now.stopped(paused)

    def drain_notes(self) -> list[str]:
        return [*self.search.drain_notes(), *(self.confirmation.drain_notes() if self.confirmation else ())]

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        return self._now.hyperparameters(trial)

    def on_end(self, trial: Trial, finished: bool, error: RecordedError | None) -> Ending:
        return self._now.on_end(trial, finished, error)

    def conclude(self, status: Status) -> Status:
        """Write the files of both, ``best.yaml`` by the confirmation; return the worse of their ends."""
        found = {self.search.conclude(status)}
        if self.confirmation is not None:
            its_end, standings = self.confirmation.conclude(status), self.confirmation.standings
            if not self.confirmation.is_over_time or standings.best() is not None or standings.failures():
                found.add(its_end)  # else the time ended before its first value, as if before its begin
            self._write_best(self.confirmation)
        elif not self.search.is_over_time and not self.is_complete:
            found.add(Status.STOPPED)
        return next(each for each in (Status.ERROR, Status.STOPPED, Status.TERMINATED) if each in found)

    def close(self) -> None:
        """Close the journal of the confirmation; idempotent."""
        self._resources.close()

    @property
    def _now(self) -> Search:
        return self.search if self.confirmation is None else self.confirmation

    def _confirm_when_due(self) -> None:
        if self.confirmation is not None or self.search.is_over_time or not self.search.is_complete:
            return
        sweep = to_confirm(self._state)
        if sweep is None:
            return
        unfinished, folder = self._folder / _UNFINISHED, self._folder / CONFIRMATION_FOLDER
        unfinished.mkdir()
        with Journal(unfinished) as journal:
            journal.head(self._heading)
        unfinished.rename(folder)
        state = SearchState(sweep, PlannedSearcher(sweep.points or ()))
        self._begin(state, self._resources.enter_context(Journal(folder)))
        self.search.standings.note(
            f"confirming the best {sweep.number_of_configurations} configurations, with {sweep.search.num_seeds} "
            "other seeds each"
        )

    def _begin(self, state: SearchState, journal: Journal, elapsed_s: float = 0.0) -> Search:
        """Start the confirmation in the rest of the search's time; it has run for ``elapsed_s`` before."""
        self.confirmation = self._make_search(state, journal)
        if self.search.deadline_s is not None:
            self.confirmation.deadline_s = self.search.deadline_s - elapsed_s
        self.milestones, self.deadline_s = self.confirmation.milestones, self.confirmation.deadline_s
        self.search.standings.confirmation = state.standings
        return self.confirmation

    def _write_best(self, confirmation: Search) -> None:
        standings = confirmation.standings
        best = surest(standings.ranked(), standings.search)
        if best is None:
            return
        tried = self._state.standings
        said = f"; {len(tried.ranked())} were tried before, with {tried.search.num_seeds} other seeds each"
        point = confirmation.point_of(best)
        SearchRecord(self._state.sweep, self._folder).write_best(best, point, standings, said)


def to_confirm(state: SearchState) -> Sweep | None:
    """Return the sweep that confirms the best configurations of a complete search; None if there are none."""
    completed = [each for each in state.standings.ranked() if each.tier is Tier.COMPLETED]
    best = completed[: state.sweep.search.confirm.top]
    points = [state.points[each.trials[0].trial.name] for each in best]
    return state.sweep.confirmation(points) if points else None


def restored_confirmation(state: SearchState, run_directory: Path) -> Restored | None:
    """Return the confirmation of a search from its journal; None if it has not begun.

    Raises ResumeError if its journal is damaged, or if the search is to try more configurations now.
    """
    folder = run_directory / CONFIRMATION_FOLDER
    if not (folder / JOURNAL_FILE).exists():
        return None
    if not state.is_exhausted:
        message = f"the best configurations of {run_directory} are being confirmed, so it tries no others"
        raise ResumeError(message, "leave search.num_samples as it was")
    sweep = to_confirm(state)
    return None if sweep is None else restored(sweep, folder)
