"""``rlexp.results``: the rows of runs as a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import rlexp
from rlexp.errors import UsageError
from rlexp.runs.record import Status
from tests.unit.run_results.run_folders import MadeTrial, make_run, row


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trials = [MadeTrial([1.0, None, 3.0], seed=4), MadeTrial([2.0, 5.0], seed=5, varied={"lr": 0.1}), MadeTrial([])]
    return make_run(tmp_path / "run", trials)


def test_columns_have_the_values_of_all_trials_in_their_order(run: Path) -> None:
    results = rlexp.results(run)
    assert len(results) == 5
    np.testing.assert_array_equal(results["episode_reward_mean"], [1.0, np.nan, 3.0, 2.0, 5.0])
    assert results["training_iteration"].tolist() == [1, 2, 3, 1, 2]
    assert results["training_iteration"].dtype == np.int64
    np.testing.assert_allclose(results["info/learner/loss"], [1, 1 / 2, 1 / 3, 1, 1 / 2])
    assert [Path(directory).name for directory in results["directory"]] == ["00000-DQN-CartPole-v1"] * 3 + [
        "00001-DQN-CartPole-v1"
    ] * 2
    assert "info" not in results
    assert [each["episode_reward_mean"] for each in results] == [1.0, None, 3.0, 2.0, 5.0]


def test_trials_have_their_record_and_rows(run: Path) -> None:
    first, second, third = rlexp.results(run).trials
    assert (first.seed, second.varied, first.status) == (4, {"lr": 0.1}, Status.TERMINATED)
    assert ([len(trial.rows) for trial in (first, second, third)]) == [3, 2, 0]


def test_last_and_best(run: Path) -> None:
    results = rlexp.results(run)
    assert results.last()["episode_reward_mean"].tolist() == [3.0, 5.0]
    assert results.best()["episode_reward_mean"] == 5.0
    assert results.best("info/learner/loss", "min")["training_iteration"] == 3
    with pytest.raises(KeyError, match="did you mean 'episode_reward_mean'"):
        results.best("episode_reward_mena")
    with pytest.raises(UsageError, match="mode must be max or min, got highest"):
        results.best(mode="highest")  # type: ignore[arg-type]


def test_trials_and_several_runs(run: Path, tmp_path: Path) -> None:
    trial = run / "00001-DQN-CartPole-v1"
    other = make_run(tmp_path / "other", [MadeTrial([7.0])])
    assert len(rlexp.results(trial)) == 2
    assert len(rlexp.results(str(run), other)) == 6
    assert len(rlexp.results(run, trial)) == 5  # a trial counts once
    for wrong in ((), (tmp_path / "nothing",)):
        with pytest.raises(UsageError):
            rlexp.results(*wrong)


def test_rows_that_a_resumed_trial_repeats_and_damaged_lines(run: Path) -> None:
    file = run / "00000-DQN-CartPole-v1" / "result.json"
    with file.open("a") as lines:
        lines.write("[1, 2]\n" + json.dumps(row(2, 8.0)) + "\n" + '{"timesteps_total": 40')
    np.testing.assert_array_equal(rlexp.results(file.parent)["episode_reward_mean"], [1.0, 8.0])


def test_unknown_column_names_the_nearest(run: Path) -> None:
    with pytest.raises(KeyError, match="no column 'timestep_total'; did you mean 'timesteps_total'"):
        rlexp.results(run)["timestep_total"]


def test_pandas_frame_has_the_same_columns(run: Path) -> None:
    pytest.importorskip("pandas")
    results = rlexp.results(run)
    frame = results.to_pandas()
    assert tuple(frame.columns) == results.columns
    assert frame["episode_reward_mean"].max() == 5.0
    assert len(frame) == 5


def test_missing_pandas_is_an_error_with_the_remedy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as caught:
        rlexp.results(run).to_pandas()
    assert (caught.value.message, caught.value.hint) == ("pandas is not installed", "pip install pandas")


def test_repr_is_a_summary(run: Path) -> None:
    lines = repr(rlexp.results(run)).splitlines()
    assert lines[0] == "Results: 3 trials, 5 rows, 7 columns"
    expected = "  00000-DQN-CartPole-v1: TERMINATED, iteration 3, 300 env steps, episode_reward_mean 3.0"
    assert lines[1] == expected
    assert lines[3] == "  00002-DQN-CartPole-v1: TERMINATED, no rows"
