"""Importance through whole sweeps whose scores are known beforehand, as the terminal and JSON show it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import Axis
from rlexp.config.keys.trial import Trial
from rlexp.runs.directories import as_typed
from rlexp.runs.record import read_run_record
from rlexp.terminal.comparison import print_comparison
from rlexp.terminal.summary import summary_lines
from tests.behaviour.simulated_sweeps import simulated, sweep_of

CONFIG = {
    "lr": {"loguniform": [1e-5, 1e-1]},
    "n_step": {"randint": [1, 8]},
    "gamma": {"uniform": [0.9, 0.999]},
    "hiddens": {"choice": [[32], [64, 64], [128]]},
}
ASHA = {"scheduler": "asha", "asha": {"grace_period": 200, "reduction_factor": 2}}


def by_lr_only(trial: Trial, steps: int) -> float:
    return 100.0 - abs(math.log10(trial.experiment.config.lr) + 3) * 10 * steps / 1000


def cost_by_lr_only(trial: Trial, steps: int) -> float:
    return -by_lr_only(trial, steps)


def compared(folder: Path, search: dict[str, Any], number: int = 40) -> Comparison:
    sweep = sweep_of(folder, CONFIG, {"num_samples": number, **search})
    reward = cost_by_lr_only if search.get("mode") == "min" else by_lr_only
    path = simulated(sweep, folder, reward, capacity=4).path
    return compare_groups([str(path)], "episode_reward_mean", Axis.STEPS, None)


@pytest.mark.parametrize("search", [{}, ASHA, {"mode": "min"}, {"scheduler": "median"}])
def test_key_that_alone_decides_the_score_has_most_of_the_importance(tmp_path: Path, search: dict[str, Any]) -> None:
    importance = compared(tmp_path, search).importance
    assert importance is not None
    assert (importance.configurations, importance.best) == (40, 8)
    first, *others = importance.keys
    assert first.key == "lr"
    assert first.share > 0.8
    assert first.is_significant
    assert not any(each.is_significant for each in others)


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
