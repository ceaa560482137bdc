"""Standings: what the trials of a sweep have reached, while they train and at the end.

Not in ``ranking``: ``rlexp compare`` imports that without what writes TensorBoard files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.search import SearchConfig, TimeAttribute
from rlexp.config.keys.trial import Trial
from rlexp.runs.recorders import flatten
from rlexp.runs.run_record import RecordedError, Status, known_number
from rlexp.search.ranking import EndedEarly, Standing, TrialStanding, common_end, ranking, score_of, standing_of


class Standings:
    """Owns what the trials of a sweep have reached; displays read it."""

    def __init__(self, search: SearchConfig, number_of_configurations: int) -> None:
        self.search = search
        self.number_of_configurations = number_of_configurations
        """How many will be tried at most."""
        self.notes: list[str] = []
        """What happened between trials and has not been drained, the newest last."""
        self.refused: dict[int, str] = {}
        """Configurations that could not even begin, and why."""
        self._by_name: dict[str, TrialStanding] = {}
        self._configurations: dict[int, list[TrialStanding]] = {}

    def begin(self, configuration: int, trial: Trial) -> None:
        """Record that a trial begins; one that is resumed is known already."""
        if trial.name in self._by_name:
            return
        standing = TrialStanding(trial)
        self._by_name[trial.name] = standing
        self._configurations.setdefault(configuration, []).append(standing)

    def of(self, trial: Trial) -> TrialStanding:
        """Return what is known of a trial."""
        return self._by_name[trial.name]

    def trial(self, name: str) -> Trial:
        """Return a trial that has begun, with its current keys."""
        return self._by_name[name].trial

    def of_configuration(self, configuration: int) -> Standing:
        """Return how a configuration stands."""
        return standing_of(configuration, self._configurations[configuration], self._common_end(), self.search)

    def score_of(self, trial: Trial) -> float | None:
        """Return what a trial scores now; it may change until all trials have ended."""
        return score_of(self._by_name[trial.name], self._common_end())

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Record a row; what it does again, since its trial began again from an earlier step, is taken back."""
        flat, standing = flatten(row), self._by_name[trial.name]
        kept = bisect_right(standing.steps, flat["timesteps_total"] - flat["timesteps_this_iter"])
        del standing.steps[kept:], standing.values[kept:]
        standing.status = Status.RUNNING
        standing.iterations = flat["training_iteration"]
        standing.timesteps_total = flat["timesteps_total"]
        standing.time_total_s = flat["time_total_s"]
        value = known_number(flat.get(self.search.metric))
        if value is not None:
            standing.steps.append(flat["timesteps_total"])
            standing.values.append(value)

    def note(self, text: str) -> None:
        """Remember what happened between trials."""
        self.notes.append(text)

    def drain_notes(self) -> list[str]:
        """Return what was noted since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def on_exploit(self, trial: Trial, donor: str, progress: Mapping[TimeAttribute, float]) -> None:
        """Record that a trial continues with other keys from another one, as far as that one had come."""
        standing, other = self._by_name[trial.name], self._by_name[donor]
        standing.trial = trial
        standing.timesteps_total, standing.iterations = (
            int(progress["timesteps_total"]),
            int(progress["training_iteration"]),
        )
        standing.time_total_s = progress["time_total_s"]
        count = sum(step <= standing.timesteps_total for step in other.steps)
        standing.steps, standing.values = other.steps[:count], other.values[:count]

    def on_early_end(self, configuration: int, ended: EndedEarly) -> None:
        """Record where the scheduler ended a configuration."""
        for standing in self._configurations[configuration]:
            standing.ended_early = ended

    def on_end(self, trial: Trial, status: Status, error: RecordedError | None) -> None:
        """Record that a trial ended."""
        standing = self._by_name[trial.name]
        standing.status = status
        standing.error = error.summary if error else None

    def ranked(self) -> list[Standing]:
        """Return the configurations, the best first."""
        return ranking(self._configurations, self.search)

    def best(self) -> Standing | None:
        """Return the best configuration, None where there is no score yet."""
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].score is not None else None

    def trials(self) -> list[TrialStanding]:
        """Return all trials in the order in which they began."""
        return list(self._by_name.values())

    def failures(self) -> list[TrialStanding]:
        """Return the trials that failed."""
        return [trial for trial in self._by_name.values() if trial.status is Status.ERROR]

    def _common_end(self) -> float | None:
        return common_end(self._by_name.values())
