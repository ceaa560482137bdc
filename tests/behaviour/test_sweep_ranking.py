"""A sweep has one ranking: its table, ``trials.csv``, TensorBoard's HParams and ``rlexp compare`` show the same.

Importance through whole sweeps whose scores are known beforehand, as the terminal and JSON show it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest
from tensorboard.plugins.hparams.api_pb2 import Status as SessionStatus
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import CurveAxis
from rlexp.config.keys.trial import Trial
from rlexp.runs.directories import as_typed
from rlexp.runs.record import read_run_record
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.rows import SCORE_TAG
from rlexp.search.ranking import RULE
from rlexp.search.record import SearchRecord
from rlexp.search.trial_source import Ending
from rlexp.terminal.comparison import print_comparison
from rlexp.terminal.summary import leaderboard_lines, summary_lines
from tests.lab.sweeps import ASHA, NEVER, Simulation, World, simulated, sweep_of, table

CONFIG = {
    "lr": {"loguniform": [1e-5, 1e-1]},
    "n_step": {"randint": [1, 8]},
    "gamma": {"uniform": [0.9, 0.999]},
    "hiddens": {"choice": [[32], [64, 64], [128]]},
}


def by_lr_only(trial: Trial, steps: int) -> float:
    return 100.0 - abs(math.log10(trial.experiment.config.lr) + 3) * 10 * steps / 1000


def compared(folder: Path, search: dict[str, Any], number: int = 40) -> Comparison:
    sweep = sweep_of(folder, CONFIG, {"num_samples": number, **search})
    path = simulated(sweep, folder, by_lr_only, capacity=4).path
    return compare_groups([str(path)], "episode_reward_mean", CurveAxis.STEPS, None)


def test_sweep_file_has_the_space(tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, CONFIG, {"num_samples": 2}), tmp_path, by_lr_only)
    assert simulation.saved["space"] == CONFIG


def test_terminal_prints_shares_and_best_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compared(tmp_path, ASHA)
    print_comparison(comparison, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("importance of the keys, and their best values")
    assert comparison.sweep is not None
    assert comparison.sweep.best is not None
    key, best, share, percent, *rest = lines[start + 2].split()
    assert (key, best, percent) == ("lr", f"{comparison.sweep.best.point['lr']:.4g}", "%")
    assert int(share) > 80
    assert len(rest) == 1, "only a bar: this is not chance"
    assert all(line.endswith("may be chance") for line in lines[start + 3 : start + 6])
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines[start:])) <= 79
    assert "that ended early, at their places in the ranking" in " ".join(lines[start:])


def test_terminal_says_why_there_is_no_importance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(compared(tmp_path, {}, number=3), as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("No importance is computed: it needs 8 configurations that ended, and there are 3.")


def test_json_has_importance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compared(tmp_path, {})
    print_comparison(comparison, as_json=True)
    importance = json.loads(capsys.readouterr().out)["importance"]
    assert importance["method"] == "PED-ANOVA"
    assert (importance["configurations"], importance["best"], importance["problem"]) == (40, 8, None)
    assert importance["keys"][0]["key"] == "lr"
    assert sum(each["share"] for each in importance["keys"]) == pytest.approx(1)
    assert all(0 < each["chance"] <= 1 for each in importance["keys"])


def test_end_of_a_sweep_names_the_command_for_its_report(tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, CONFIG, {"num_samples": 2}), tmp_path, by_lr_only)
    path, standings = simulation.path, simulation.search.standings
    lines = summary_lines(read_run_record(path), path, standings)
    shown = as_typed(path)
    assert f"      rlexp compare {shown} --html {shown}/report.html" in lines


REWARD = "episode_reward_mean"
RATES = {"lr": {"grid_search": [0.3, 0.6, 0.1, 0.5, 0.2, 0.4]}}
MANY = {"lr": {"grid_search": [round(0.1 * number, 1) for number in range(1, 9)]}}


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
        self.recorders[trial.name].end(ending.status, ending.score)
        self.recorders[trial.name].close()


def falling(trial: Trial, steps: int) -> float:
    """Return a reward that falls: who is ended early has a higher score than who went on, and a lower rank."""
    return trial.experiment.config.lr * (1_100 - steps) / 100 + trial.sample / 1_000


def swept(folder: Path, **search: Any) -> Simulation:
    folder.mkdir(exist_ok=True)
    return simulated(
        sweep_of(folder, RATES, ASHA | {"num_seeds": 2} | search), folder, falling, make_world=RecordedWorld
    )


def compared_sweep(path: Path, metric: str = REWARD, axis: CurveAxis = CurveAxis.STEPS) -> Comparison:
    return compare_groups([str(path)], metric, axis, None)


def shown_order(comparison: Comparison) -> list[str]:
    return [group.name for group in comparison.groups] + [each.name for each in comparison.ended_early]


def ranked_labels(path: Path) -> list[str]:
    return list(dict.fromkeys(f"lr={float(row['lr'])}" for row in table(path)))


@pytest.mark.parametrize("mode", ["max", "min"])
def test_ranks_and_scores_are_the_same_wherever_they_are_shown(tmp_path: Path, mode: str) -> None:
    simulation = swept(tmp_path, mode=mode)
    rows = table(simulation.path)
    assert {row["status"] for row in rows} == {"TERMINATED", "PRUNED"}
    ranked = ranked_labels(simulation.path)

    comparison = compared_sweep(simulation.path)
    assert shown_order(comparison) == ranked
    for group in comparison.groups:
        mine = [row for row in rows if f"lr={float(row['lr'])}" == group.name]
        assert group.mean == pytest.approx(float(mine[0]["configuration_score"]))
        assert [trial.score for trial in group.trials] == [float(row["score"]) for row in mine]
    for ended in comparison.ended_early:
        mine = [row for row in rows if f"lr={float(row['lr'])}" == ended.name]
        facts = [mine[0][column] for column in ("ended_at", "value_there", "rank_1_there")]
        assert [ended.at, ended.value, ended.first_value] == [float(fact) for fact in facts]

    lines = [line.split() for line in leaderboard_lines(simulation.search.standings)]
    configurations = [line for line in lines if line and line[-1].startswith("lr=")]
    assert [(line[0], line[-1]) for line in configurations] == [(str(n), label) for n, label in enumerate(ranked, 1)]


def test_hparams_tab_has_the_final_scores_of_completed_trials(tmp_path: Path) -> None:
    """Rewards end at different steps, so what a trial scored when it ended is not its final score."""
    lengths = {rate: 1_000 - 100 * number for number, rate in enumerate(sorted(RATES["lr"]["grid_search"]))}

    class UnequalWorld(RecordedWorld):
        def _report(self, trial: Trial, before: Any) -> None:
            stop = {"timesteps_total": lengths[trial.experiment.config.lr]}
            super()._report(replace(trial, experiment=trial.experiment.model_copy(update={"stop": stop})), before)

    simulation = simulated(sweep_of(tmp_path, RATES, {}), tmp_path, falling, make_world=UnequalWorld)
    rows = table(simulation.path)
    assert len({row["timesteps_total"] for row in rows}) == len(rows)
    shown = hparams_scores(simulation.path)
    assert shown == {row["trial"]: pytest.approx(float(row["score"])) for row in rows}


def test_hparams_tab_has_no_score_of_pruned_trials(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    rows = table(simulation.path)
    assert hparams_scores(simulation.path) == {
        row["trial"]: pytest.approx(float(row["score"])) if row["score"] else None for row in rows
    }
    assert {row["status"] for row in rows if not row["score"]} == {"PRUNED"}


def hparams_scores(path: Path) -> dict[str, float | None]:
    """Return the scores in TensorBoard's HParams tab, by trial, as its own server answers."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(path))
    multiplexer.Reload()
    backend = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(path))))
    request = ListSessionGroupsRequest(
        start_index=0, slice_size=1_000, allowed_statuses=[number for _, number in SessionStatus.items()]
    )
    groups = Handler(RequestContext(), backend, "", request).run().session_groups
    return {
        session.name: next((each.value for each in session.metric_values if each.name.tag == SCORE_TAG), None)
        for group in groups
        for session in group.sessions
    }


def test_a_lower_score_that_ranks_higher_is_explained(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    comparison = compared_sweep(simulation.path)
    best, last = comparison.groups[0], comparison.ended_early[-1]
    assert last.value is not None
    assert last.first_value is not None
    assert best.mean < last.value, "rewards fall: it ended early, where all are higher"
    assert last.where.endswith("of 1,000")
    rate = best.trials[0].folder.varied["lr"]
    assert last.first_value == pytest.approx(rate * (1_100 - (last.at or 0)) / 100 + 0.0005)
    assert RULE in comparison.scoring
    assert RULE in leaderboard_lines(simulation.search.standings)


def test_every_completed_group_is_compared_with_the_first(tmp_path: Path) -> None:
    first, *others = compared_sweep(swept(tmp_path).path).groups
    assert first.improvement is None
    assert others
    assert all(group.improvement is not None for group in others)


@pytest.mark.parametrize("seed", range(10))
def test_compare_agrees_with_trials_csv_on_generated_sweeps(seed: int, tmp_path: Path) -> None:
    """Sweeps with failures, early ends, diverged rewards, values that come late, and a person who stops them."""
    rng = Random(seed)
    kinds = {rate: rng.choice(["fine", "fine", "late", "diverges", "silent"]) for rate in MANY["lr"]["grid_search"]}
    levels = {rate: rng.uniform(-10, 100) for rate in kinds}

    def reward(trial: Trial, steps: int) -> float | None:
        rate = trial.experiment.config.lr
        kind, first = kinds[rate], 100 * rng.randint(1, 6)
        if kind == "silent" or (kind == "late" and steps < first):
            return None
        if kind == "diverges" and steps > 300:
            return float("nan")
        return levels[rate] * steps / 1_000 + rng.gauss(0, 10)

    stopped_world = partial(World, stop_after=(NEVER, 60, 25)[seed % 3])
    search = {
        "scheduler": ("asha", "median", "fifo")[seed % 4 % 3],
        "num_seeds": 1 + seed % 2,
        "asha": {"grace_period": 200, "reduction_factor": 2},
        "median": {"grace_period": 200, "min_samples_required": 2},
        "mode": ("max", "min")[seed // 5],
    }
    simulation = simulated(sweep_of(tmp_path, MANY, search), tmp_path, reward, make_world=stopped_world)
    ranks, comparison = ranked_labels(simulation.path), compared_sweep(simulation.path)
    groups, ended = ([ranks.index(each.name) for each in part] for part in (comparison.groups, comparison.ended_early))
    assert groups == sorted(groups)
    assert ended == sorted(ended)
    assert {*groups, *ended} == set(range(len(ranks)))
    if comparison.window is None:
        assert [*groups, *ended] == list(range(len(ranks)))
    else:
        assert "No configuration has completed." in comparison.scoring
        assert not any(row["configuration_score"] for row in table(simulation.path))


def test_compare_of_a_stopped_sweep_lists_a_failed_configuration_last(tmp_path: Path) -> None:
    """A seed of the failed configuration has completed, as none of the other one has."""

    def reward(trial: Trial, steps: int) -> float:
        return float("nan") if trial.index == 1 else steps

    sweep = sweep_of(tmp_path, {"lr": {"grid_search": [0.3, 0.6]}}, {"num_seeds": 2})
    simulation = simulated(sweep, tmp_path, reward, capacity=1, make_world=partial(World, stop_after=16))
    rows = [(row["lr"], row["status"]) for row in table(simulation.path)]
    assert rows == [("0.6", "STOPPED"), ("0.3", "TERMINATED"), ("0.3", "ERROR")]
    assert shown_order(compared_sweep(simulation.path)) == ["lr=0.6", "lr=0.3"]


def test_last_lines_of_a_sweep_recommend_a_comparison_in_its_order(tmp_path: Path) -> None:
    """The configuration that is ended first, at 200 of 1,000 steps, would be the best of all there."""
    for metric in (REWARD, "episode_len_mean"):
        simulation = swept(tmp_path / metric, metric=metric)
        record = read_run_record(simulation.path)
        lines = summary_lines(record, simulation.path, simulation.search.standings)
        command = next(line.removeprefix("next:").split() for line in lines if "rlexp compare" in line)
        metric_shown = command[command.index("--metric") + 1] if "--metric" in command else REWARD
        assert shown_order(compared_sweep(simulation.path, metric_shown)) == ranked_labels(simulation.path)


def test_comparison_at_equal_budgets_says_that_it_is_not_the_ranking(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    comparison = compare_groups([str(simulation.path)], REWARD, CurveAxis.STEPS, None, 200)
    assert len(comparison.groups) == 6
    means = [group.mean for group in comparison.groups]
    assert means == sorted(means, reverse=True)
    assert comparison.scoring.endswith("ordered by these scores; the sweep's ranking is by all steps: trials.csv.")


def test_files_of_a_sweep_are_written_every_few_seconds_and_at_its_end(tmp_path: Path) -> None:
    """12 trials end, of 10 rows each: all within the first seconds of the sweep."""
    written: list[str] = []
    write = SearchRecord.write

    def counted(record: SearchRecord, *arguments: Any) -> None:
        write(record, *arguments)
        written.append(str(len(table(tmp_path / "out" / "sweep"))))

    with patch.object(SearchRecord, "write", counted), patch("rlexp.search.record.time.monotonic", lambda: 1e6):
        swept(tmp_path)
    assert written == ["2", "12"], "after the first row, when two trials run, and at the end"


def test_larger_files_of_a_sweep_are_written_less_often(tmp_path: Path) -> None:
    """A write takes a second here; it may take a twentieth of the time."""
    clock, times = count(0, 0.5), []
    write = SearchRecord.write

    def timed(record: SearchRecord, *arguments: Any) -> None:
        times.append(next(clock))
        write(record, *arguments)

    with patch.object(SearchRecord, "write", timed), patch("rlexp.search.record.time.monotonic", lambda: next(clock)):
        swept(tmp_path)
    assert len(times) > 3
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(times[:-1]))


def test_another_metric_or_axis_is_scored_as_for_any_run(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    for other in (
        compared_sweep(simulation.path, "episode_len_mean"),
        compared_sweep(simulation.path, axis=CurveAxis.TIME),
    ):
        assert other.window is not None
        assert other.scoring.startswith("Scores are means over ")
        assert "the sweep's ranking" in other.scoring


def test_no_file_of_the_run_itself_becomes_a_run_of_tensorboard(tmp_path: Path) -> None:
    simulation = swept(tmp_path)
    assert not list(simulation.path.glob("*tfevents*"))
    assert len(list(simulation.path.glob("*/*tfevents*"))) >= 12
