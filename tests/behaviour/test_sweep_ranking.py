"""A sweep has one ranking: its table, ``trials.csv``, TensorBoard's HParams and ``rlexp compare`` show the same."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlexp.config.keys.trial import Trial
from rlexp.display.leaderboard import leaderboard_lines
from rlexp.number_format import score
from rlexp.results.axis import Axis
from rlexp.results.comparison import Comparison, compare_groups
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.recorders.tensorboard_recorder import SCORE_TAG
from rlexp.runs.run_record import Status
from rlexp.search.trial_source import Ending
from tests.behaviour.simulated_sweeps import Simulation, World, simulated, sweep_of

REWARD = "episode_reward_mean"
RATES = {"lr": {"grid_search": [0.3, 0.6, 0.1, 0.5, 0.2, 0.4]}}
ASHA = {"scheduler": "asha", "asha": {"grace_period": 200, "reduction_factor": 2}, "num_seeds": 2}


class RecordedWorld(World):
    """A World whose trials are recorded for TensorBoard too."""

    recorders: dict[str, TrialRecorder]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recorders = {}

    def _record(self, trial: Trial, row: dict[str, Any]) -> None:
        if trial.name not in self.recorders:
            directory = self._directory.trial_directory(trial)
            values, metrics = self._search.hyperparameters(trial), self._search.hparams_metrics
            self.recorders[trial.name] = TrialRecorder(directory, values, metrics)
        self.recorders[trial.name].record(row)
        self._directory.trial_result(trial, row)

    def _close(self, trial: Trial, ending: Ending) -> None:
        self.recorders[trial.name].end(ending.status is not Status.ERROR, ending.score)
        self.recorders[trial.name].close()


def falling(trial: Trial, steps: int) -> float:
    """Return a reward that falls: who is ended early has a higher score than who went on, and a lower rank."""
    return trial.experiment.config.lr * (1_100 - steps) / 100 + trial.sample / 1_000


def swept(folder: Path, **search: Any) -> Simulation:
    return simulated(sweep_of(folder, RATES, ASHA | search), folder, falling, make_world=RecordedWorld)


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((path / "trials.csv").read_text().splitlines()))


def compared(path: Path, metric: str = REWARD, axis: Axis = Axis.STEPS) -> Comparison:
    return compare_groups([str(path)], metric, axis, None)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_ranks_and_scores_are_the_same_wherever_they_are_shown(tmp_path: Path, mode: str) -> None:
    simulation = swept(tmp_path, mode=mode)
    rows = table(simulation.path)
    statuses = {row["status"] for row in rows}
    assert statuses == {"TERMINATED", "PRUNED"}
    ranked = list(dict.fromkeys(float(row["lr"]) for row in rows))

    groups = compared(simulation.path).groups
    assert [float(group.name.removeprefix("lr=")) for group in groups] == ranked
    for group in groups:
        mine = [row for row in rows if f"lr={float(row['lr'])}" == group.name]
        assert group.mean == pytest.approx(float(mine[0]["configuration_score"]))
        assert [trial.score for trial in group.trials] == [float(row["score"]) for row in mine]

    lines = leaderboard_lines(simulation.search.standings)[1 : len(ranked) + 1]
    assert [line.split()[:2] for line in lines] == [
        [str(rank), score(group.mean)] for rank, group in enumerate(groups, start=1)
    ]
    for row in rows:
        board = EventAccumulator(str(simulation.path / row["trial"]))
        board.Reload()
        assert board.Scalars(SCORE_TAG)[-1].value == pytest.approx(float(row["score"]))


def test_the_rule_says_why_a_lower_score_ranks_higher(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    best, *_, last = compared(simulation.path).groups
    assert best.mean < last.mean
    rule = compared(simulation.path).scoring
    assert "one that ended early, over the last tenth of its own" in rule
    assert rule in " ".join(leaderboard_lines(simulation.search.standings))


def test_no_probability_is_given_between_scores_of_different_steps(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    statuses = {row["lr"]: row["status"] for row in table(simulation.path)}
    groups = compared(simulation.path).groups
    for group in groups[1:]:
        complete = statuses[group.name.removeprefix("lr=")] == statuses[groups[0].name.removeprefix("lr=")]
        assert (group.improvement is not None) == complete


def test_another_metric_or_axis_is_scored_as_for_any_run(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    for other in (compared(simulation.path, "episode_len_mean"), compared(simulation.path, axis=Axis.TIME)):
        assert other.window is not None
        assert other.scoring.startswith("Scores are means over ")


def test_no_file_of_the_run_itself_becomes_a_run_of_tensorboard(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    assert not list(simulation.path.glob("*tfevents*"))
    assert len(list(simulation.path.glob("*/*tfevents*"))) >= 12
