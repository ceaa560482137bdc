"""The row in a checkpoint's manifest is recorded again by whoever continues from it, so it has to be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.errors import CheckpointError
from rlexp.runs.rows import checkpoint_row
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
