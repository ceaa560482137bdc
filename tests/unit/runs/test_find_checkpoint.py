"""The checkpoint that a path means lies in the run that is named, whatever its record says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.errors import ResumeError
from rlexp.runs.checkpoints import write_checkpoint
from rlexp.runs.checkpoints.kept import find_checkpoint
from rlexp.runs.record import RunRecord, TrialRecord, read_run_record

TRIAL = "00000-DQN"
FIRST, SECOND = (f"{TRIAL}/checkpoint_00000{number}" for number in (1, 2))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a run of one trial and two checkpoints, and another trial beside it."""
    for path in (tmp_path / "run" / FIRST, tmp_path / "run" / SECOND, tmp_path / "other" / "checkpoint_000001"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, {"weights": {"w": np.ones(1)}}, {}, {})
    return tmp_path


def recorded(out: Path, **trial: Any) -> Path:
    known: dict[str, Any] = {"name": TRIAL, "directory": TRIAL, "seed": 0, "varied": {}} | trial
    record = RunRecord("run", [], {}, None, "host", 2, "2026-01-01T00:00:00+00:00", trials=[TrialRecord(**known)])
    record.write(out / "run")
    return out / "run"


def test_find_checkpoint_returns_best_else_newest(out: Path) -> None:
    assert find_checkpoint(recorded(out, best_checkpoint=FIRST)) == out / "run" / FIRST
    assert find_checkpoint(recorded(out)) == out / "run" / SECOND
    assert find_checkpoint(recorded(out, best_checkpoint=FIRST, best_checkpoint_reward="high")) == out / "run" / FIRST


def test_newest_is_found_where_the_best_was_removed(out: Path) -> None:
    removed = f"{TRIAL}/checkpoint_000009"
    assert find_checkpoint(recorded(out, best_checkpoint=removed, best_checkpoint_reward=9.0)) == out / "run" / SECOND


@pytest.mark.parametrize("directory", ["../other", "..", "", "/", "a\0b", [1], None])
def test_trial_outside_the_run_is_refused(out: Path, directory: Any) -> None:
    with pytest.raises(ResumeError, match="points elsewhere"):
        find_checkpoint(recorded(out, directory=directory))


@pytest.mark.parametrize(
    "best", ["../other/checkpoint_000001", f"{TRIAL}/../../other", f"{TRIAL}/..", TRIAL, "/etc", [1], f"{TRIAL}/\0"]
)
def test_checkpoint_outside_the_run_is_refused(out: Path, best: Any) -> None:
    with pytest.raises(ResumeError, match="points elsewhere"):
        find_checkpoint(recorded(out, best_checkpoint=best))


def test_folder_of_runs_has_a_hint_to_one(out: Path) -> None:
    recorded(out)
    (out / "empty").mkdir()
    for path, message, hint in (
        (out, "neither a run", f"name a run in it, for example {out / 'run'}; rlexp ls {out} lists them"),
        (out / "empty", "neither a run", "rlexp ls DIR lists runs"),
        (out / "nowhere", f"path {out / 'nowhere'} does not exist", "rlexp ls DIR lists runs"),
    ):
        with pytest.raises(ResumeError, match=message) as caught:
            find_checkpoint(path)
        assert caught.value.hint == hint


def test_a_directory_without_a_record_has_a_hint(out: Path) -> None:
    recorded(out)
    for path, message, hint in (
        (out, "is not a run of rlexp", "name a run in it"),
        (out / "other", "is not a run of rlexp", "rlexp ls DIR lists runs"),
        (out / "nowhere", "^path .* does not exist", "rlexp ls DIR lists runs"),
    ):
        with pytest.raises(ResumeError, match=message) as caught:
            read_run_record(path)
        assert (caught.value.hint or "").startswith(hint)
