"""Errors of the process that trains come out of it as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlexp
from rlexp.api.client import described, reported
from rlexp.cluster.session import RayStoppedError
from rlexp.errors import (
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    EnvError,
    Problem,
    ResourceError,
    ResumeError,
    RlexpError,
    TrialError,
    UsageError,
)
from rlexp.runs.run_directory import LostDirectoryError

MORE = [Problem("", "b", None)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("a", "b"), UsageError),
        (ConfigError([Problem("f:1:2", "a", "b"), Problem("f:3:4", "c")]), ConfigError),
        (ResourceError("a", "b", MORE), ResourceError),
        (ResumeError("a"), ResumeError),
        (DamagedCheckpointError("x", "y"), CheckpointError),
        (EnvError("a"), EnvError),
        (TrialError("a", "b"), TrialError),
        (RayStoppedError("a", "b"), RlexpError),
        (LostDirectoryError("a"), RlexpError),
    ],
)
def test_error_keeps_class_words_and_exit_code(error: RlexpError, kind: type[RlexpError]) -> None:
    found = reported(json.loads(json.dumps(described(error))))
    assert type(found) is kind
    assert (str(found), found.problems, found.exit_code) == (str(error), error.problems, error.exit_code)


def test_wrong_experiments_raise_before_anything_is_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        rlexp.run({"a": {"run": "DQN", "env": "CartPole-v1", "config": {"lrr": 1}}}, out=tmp_path / "out", quiet=True)
    assert [problem.where for problem in caught.value.problems] == ['experiments["a"]["config"]["lrr"]']
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="got a function"):
        rlexp.run({"a": {"run": "DQN", "env": lambda: None}}, out=tmp_path / "out")


def test_resume_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ResumeError):
        rlexp.resume(tmp_path / "nothing", quiet=True)
