"""A trial scheduler that pauses trials until all have reached a time: synchronous successive halving."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlexp.config.keys.search import AshaConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.variants.sweep import Sweep
from rlexp.runs.run_record import Status
from rlexp.search.trial_scheduler import CONTINUE, PAUSE, Judgement, Milestones, Report, TrialScheduler, Verdict
from tests.behaviour.rehearsed_sweeps import Copies, Rehearsals, conclusion, rows, text_of
from tests.behaviour.simulated_sweeps import simulated, sweep_of

RATES = {"lr": {"grid_search": [0.4, 0.1, 0.2, 0.3]}}
SEARCH = {"scheduler": "asha", "asha": {"grace_period": 200, "reduction_factor": 2}}


class SynchronousHalving(TrialScheduler):
    """Pauses each trial at a rung until all have come; then the better half continues and the others stop."""

    def __init__(self, first: float, size: int) -> None:
        self.milestones = Milestones("timesteps_total", first, writes_checkpoint=True)
        self._first = first
        self._size = size
        self._rungs: list[dict[str, float]] = []
        self._stopped: set[str] = set()

    @classmethod
    def of(cls, sweep: Sweep) -> SynchronousHalving:
        return cls(sweep.stop_interval, sweep.number_of_configurations)

    def judge(self, report: Report) -> Judgement:
        rung = sum(report.trial in values for values in self._rungs)
        if report.checkpoint is None or report.time < self._first * 2**rung:
            return CONTINUE
        self._rungs += [{}] * (rung == len(self._rungs))
        self._rungs[rung][report.trial] = report.value
        return self.judge_paused(report.trial)

    def judge_paused(self, trial: str) -> Judgement:
        for number, values in enumerate(self._rungs):
            if trial not in values:
                break
            if len(values) < self._size // 2**number:
                return PAUSE
            if trial not in sorted(values, key=lambda name: -values[name])[: math.ceil(len(values) / 2)]:
                return Judgement(Verdict.STOP, f"not in the better half at rung {number}")
        return CONTINUE


def rate(trial: Trial, steps: int) -> float:
    return trial.experiment.config.lr * 100


@pytest.fixture(autouse=True)
def _synchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AshaConfig, "RULE", f"{__name__}:SynchronousHalving")


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_paused_trials_continue_or_stop_once_all_have_reported(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, RATES, SEARCH), tmp_path, rate, capacity)
    assert simulation.most_running == capacity
    ends = {name.rpartition("lr=")[2]: end for name, end in simulation.ends.items()}
    pruned = Status.PRUNED
    assert ends == {"0.4": (Status.TERMINATED, 1000), "0.3": (pruned, 400), "0.2": (pruned, 200), "0.1": (pruned, 200)}
    best = simulation.search.standings.best()
    assert best is not None
    assert best.varied == {"lr": 0.4}


def test_paused_trials_of_a_killed_sweep_stay_paused(tmp_path: Path) -> None:
    text = text_of(RATES, SEARCH)
    rehearsals = Rehearsals(tmp_path, rate)
    copies = Copies(tmp_path / "copies", stride=5)
    whole = rehearsals.begin(text, copies.take)
    assert len(copies.paths) > 20
    for copy in copies.paths:
        rehearsals.resume(copy)
        assert conclusion(copy) == conclusion(whole)
        assert {name: len(lines) for name, lines in rows(copy).items()} == {
            name: len(lines) for name, lines in rows(whole).items()
        }
