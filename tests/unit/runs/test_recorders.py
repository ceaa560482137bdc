"""What recorders write is read back by the programs that people point at it; rows of checkpoints are recorded again."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import metadata

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.metrics import AGENT_METRICS, STOP_METRICS
from rlexp.errors import CheckpointError
from rlexp.runs.recorders import CsvRecorder, JsonRecorder, TrialRecorder
from rlexp.runs.rows import COLUMNS, checkpoint_row, flatten
from rlexp.runs.tensorboard import TensorBoardRecorder
from tests.unit.conftest import MakeRow

PATH = Path("checkpoint_000001")


def test_row_of_a_trial_is_returned_and_older_checkpoints_have_none(make_row: MakeRow) -> None:
    assert checkpoint_row(PATH, {"metrics": make_row(3)}) == make_row(3)
    assert checkpoint_row(PATH, {"metrics": make_row(3, reward=None)}) is not None
    assert checkpoint_row(PATH, {}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"training_iteration": "x"},
        {"training_iteration": None},
        {"training_iteration": -1},
        {"timesteps_total": 10**300},
        {"time_total_s": []},
        {"episode_reward_mean": "high"},
        {"trial_name": 3},
        {"done": None},
        {"info": {"replay_fill_per_shard": [10**400]}},
    ],
    ids=str,
)
def test_anything_else_is_refused(change: dict[str, Any], make_row: MakeRow) -> None:
    with pytest.raises(CheckpointError, match="not a row of results"):
        checkpoint_row(PATH, {"metrics": make_row(1) | change})


@pytest.mark.parametrize("metrics", [[1], "row", 3, {}])
def test_what_is_no_mapping_of_columns_is_refused(metrics: object) -> None:
    with pytest.raises(CheckpointError, match="not a row of results"):
        checkpoint_row(PATH, {"metrics": metrics})


def json_rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "result.json").read_text().splitlines()]


def csv_rows(directory: Path) -> list[dict[str, str]]:
    with (directory / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def events(directory: Path) -> list[Any]:
    paths = sorted(directory.glob("events.out.tfevents.*"))
    return [event for path in paths for event in EventFileLoader(str(path)).Load()]


def points(directory: Path, tag: str) -> list[tuple[int, float]]:
    found = [(event.step, value) for event in events(directory) for value in event.summary.value]
    return [(step, value.tensor.float_val[0]) for step, value in found if value.tag == tag]


def session(directory: Path) -> Any:
    for event in events(directory):
        for value in event.summary.value:
            if value.tag == metadata.SESSION_START_INFO_TAG:
                return metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    raise AssertionError("no hparams")


def hparams(directory: Path) -> dict[str, Any]:
    return {name: getattr(item, item.WhichOneof("kind")) for name, item in session(directory).hparams.items()}


def test_every_column_is_declared_once_and_every_stop_metric_is_one() -> None:
    assert [name for name, times in Counter(COLUMNS).items() if times > 1] == []
    assert set(STOP_METRICS) - set(AGENT_METRICS) <= set(COLUMNS)


def test_flatten_names_nested_items_by_their_path() -> None:
    assert flatten({"a": 1, "info": {"b": [2], "learner": {"loss": 3}, "none": {}}}) == {
        "a": 1,
        "info/b": [2],
        "info/learner/loss": 3,
    }


def test_json_keeps_the_row_as_it_was_and_is_readable_at_once(tmp_path: Path, make_row: MakeRow) -> None:
    row = make_row(1)
    with closing(JsonRecorder(tmp_path)) as recorder:
        recorder.record(row)
        assert json_rows(tmp_path) == [row]
        recorder.close()


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), np.float32("nan")])
def test_missing_reward_is_null_empty_and_no_point(tmp_path: Path, make_row: MakeRow, missing: Any) -> None:
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        recorder.record(make_row(1, missing))
        recorder.record(make_row(2, np.float32(8.5)))
    assert [row["episode_reward_mean"] for row in json_rows(tmp_path)] == [None, 8.5]
    assert [row["episode_reward_mean"] for row in csv_rows(tmp_path)] == ["", "8.5"]
    assert points(tmp_path, "ray/tune/episode_reward_mean") == [(2_000, 8.5)]


def test_csv_has_the_declared_columns_then_the_extra_ones_of_the_first_row(tmp_path: Path, make_row: MakeRow) -> None:
    with closing(CsvRecorder(tmp_path, DQNConfig.AGENT_COLUMNS)) as recorder:
        recorder.record(make_row(1, extra=1))
        recorder.record(make_row(2, extra=2, later=3))
    rows = csv_rows(tmp_path)
    assert tuple(rows[0]) == (*COLUMNS, *DQNConfig.AGENT_COLUMNS, "extra")
    assert [row["extra"] for row in rows] == ["1", "2"]
    assert rows[1]["info/replay_fill_per_shard"] == "[0.25, 0.75]"
    assert rows[1]["info/learner/loss"] == "0.125"


def test_recorders_continue_existing_files(tmp_path: Path, make_row: MakeRow) -> None:
    for iteration in (1, 2):
        with closing(TrialRecorder(tmp_path, {"lr": 0.001})) as recorder:
            recorder.record(make_row(iteration, extra=iteration))
    assert [row["training_iteration"] for row in json_rows(tmp_path)] == [1, 2]
    assert [row["extra"] for row in csv_rows(tmp_path)] == ["1", "2"]
    assert points(tmp_path, "ray/tune/training_iteration") == [(1_000, 1.0), (2_000, 2.0)]


@pytest.mark.parametrize("reopened", [False, True])
def test_recorders_take_back_repeated_iterations(tmp_path: Path, make_row: MakeRow, reopened: bool) -> None:
    recorder = TrialRecorder(tmp_path, {})
    for iteration in (1, 2, 3, 4, 5):
        recorder.record(make_row(iteration, reward=float(iteration)))
    if reopened:
        recorder.close()
        recorder = TrialRecorder(tmp_path, {})
    # From the checkpoint of iteration 2 on, and in steps that are a little longer now.
    for iteration in (3, 4):
        again = make_row(iteration, reward=-1.0, timesteps_total=2_000 + 1_100 * (iteration - 2))
        recorder.record({**again, "timesteps_this_iter": 1_100})
    recorder.close()
    assert [row["training_iteration"] for row in json_rows(tmp_path)] == [1, 2, 3, 4]
    assert [row["episode_reward_mean"] for row in json_rows(tmp_path)] == [1.0, 2.0, -1.0, -1.0]
    assert [row["training_iteration"] for row in csv_rows(tmp_path)] == ["1", "2", "3", "4"]
    board = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("ray/tune/episode_reward_mean")] == [
        (1_000, 1.0),
        (2_000, 2.0),
        (3_100, -1.0),
        (4_200, -1.0),
    ]


def test_missing_row_of_a_checkpoint_is_recorded(tmp_path: Path, make_row: MakeRow) -> None:
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        recorder.record(make_row(1))
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        recorder.record_missing(make_row(2))
        recorder.record_missing(make_row(2, reward=99.0))
        recorder.record(make_row(3))
    assert [row["training_iteration"] for row in json_rows(tmp_path)] == [1, 2, 3]
    assert [row["episode_reward_mean"] for row in csv_rows(tmp_path)] == ["20.0", "20.0", "20.0"]
    assert [step for step, _ in points(tmp_path, "ray/tune/done")] == []
    assert [step for step, _ in points(tmp_path, "ray/tune/time_total_s")] == [1_000, 2_000, 3_000]


def test_row_cut_off_by_a_kill_is_recorded_once_in_every_file(
    tmp_path: Path, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        recorder.record(make_row(1))
        for killed_in in (TensorBoardRecorder, JsonRecorder):
            with monkeypatch.context() as patch:
                patch.setattr(killed_in, "record", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    recorder.record(make_row(2))
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        recorder.record_missing(make_row(2))
    board = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    board.Reload()
    assert [row["training_iteration"] for row in json_rows(tmp_path)] == [1, 2]
    assert [row["training_iteration"] for row in csv_rows(tmp_path)] == ["1", "2"]
    assert [event.step for event in board.Scalars("ray/tune/episode_reward_mean")] == [1_000, 2_000]


def test_unknown_lines_are_kept(tmp_path: Path, make_row: MakeRow) -> None:
    (tmp_path / "result.json").write_text("not json\n[1]\n")
    with closing(JsonRecorder(tmp_path)) as recorder:
        recorder.record(make_row(1))
        recorder.record(make_row(1))
    lines = (tmp_path / "result.json").read_text().splitlines()
    assert lines[:2] == ["not json", "[1]"]
    assert len(lines) == 3


@pytest.mark.parametrize("lost", [1, 40])
def test_a_line_that_a_kill_cut_is_dropped_on_resume(tmp_path: Path, make_row: MakeRow, lost: int) -> None:
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        for iteration in (1, 2):
            recorder.record(make_row(iteration))
    for name in ("result.json", "progress.csv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-lost])
    with closing(TrialRecorder(tmp_path, {})) as recorder:
        recorder.record(make_row(3))
    assert [row["training_iteration"] for row in json_rows(tmp_path)] == [1, 3]
    assert [row["training_iteration"] for row in csv_rows(tmp_path)] == ["1", "3"]


def test_a_cut_header_is_written_again(tmp_path: Path, make_row: MakeRow) -> None:
    (tmp_path / "progress.csv").write_text("training_iter")
    with closing(CsvRecorder(tmp_path)) as recorder:
        recorder.record(make_row(1))
    assert [row["training_iteration"] for row in csv_rows(tmp_path)] == ["1"]


def test_tensorboard_has_a_tag_per_number_over_the_env_steps(tmp_path: Path, make_row: MakeRow) -> None:
    with closing(TensorBoardRecorder(tmp_path, {})) as recorder:
        recorder.record(make_row(1, done=True))
        recorder.record(make_row(2))
        assert points(tmp_path, "ray/tune/episode_reward_mean") == [(1_000, 20.0), (2_000, 20.0)]
        recorder.close()
    assert points(tmp_path, "ray/tune/info/learner/loss") == [(1_000, 0.125), (2_000, 0.125)]
    assert points(tmp_path, "ray/tune/info/replay_fill_per_shard/1") == [(1_000, 0.75), (2_000, 0.75)]
    tags = {value.tag for event in events(tmp_path) for value in event.summary.value}
    assert tags.isdisjoint({"ray/tune/done", "ray/tune/date", "ray/tune/info/bottleneck"})


def test_hyperparameters_are_there_before_the_first_row(tmp_path: Path) -> None:
    config = {"lr": 0.001, "double_q": True, "model": {"fcnet_hiddens": [64, 64]}, "n_step": 3, "horizon": None}
    with closing(TensorBoardRecorder(tmp_path, config)):
        assert hparams(tmp_path) == {
            "lr": 0.001,
            "double_q": True,
            "model/fcnet_hiddens": "[64, 64]",
            "n_step": 3.0,
        }


def test_event_files_stay_in_order_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for clock in (2_000_000_000.0, 1_000_000_000.0, 2_000_000_000.0):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        TensorBoardRecorder(tmp_path, {}).close()
    seconds = [path.name.split(".")[3] for path in sorted(tmp_path.iterdir())]
    assert seconds == ["2000000000", "2000000001", "2000000002"]


def test_recording_after_closing_is_an_error(tmp_path: Path, make_row: MakeRow) -> None:
    recorder = TrialRecorder(tmp_path, {})
    recorder.close()
    with pytest.raises(ValueError, match="closed file"):
        recorder.record(make_row())


def test_recorders_import_neither_torch_nor_tensorflow_nor_ray(tmp_path: Path) -> None:
    """In a fresh interpreter in which a trap stands for each of them: installed or not, nobody may try."""
    program = f"""
import sys
from pathlib import Path

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "tensorflow", "ray"):
            raise SystemExit("imports " + name)

sys.meta_path.insert(0, Trap())
import rlexp.runs.checkpoints, rlexp.terminal.displays, rlexp.runs.run_directory
from rlexp.runs.recorders import TrialRecorder
recorder = TrialRecorder(Path({str(tmp_path)!r}), {{"lr": 0.1}})
recorder.record({{"training_iteration": 1, "timesteps_total": 1, "timesteps_this_iter": 1}})
recorder.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_trials_of_two_runs_are_two_rows_of_the_hparams_tab(tmp_path: Path) -> None:
    sessions = set()
    for run in ("pong", "pong-2"):
        directory = tmp_path / run / "00000-APEX-Pong"
        directory.mkdir(parents=True)
        TensorBoardRecorder(directory, {"lr": 0.001}).close()
        sessions.add(session(directory).group_name)
    assert sessions == {"pong/00000-APEX-Pong", "pong-2/00000-APEX-Pong"}
