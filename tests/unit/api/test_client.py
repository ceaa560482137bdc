"""The program's end of the process that trains: it returns although others hold the process's streams, or it hangs.

Errors of the process that trains come out of it as they are.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest

import rlexp
from rlexp.api import client
from rlexp.api.client import described, reported
from rlexp.api.runs import Run, failed_run
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
from rlexp.runs.record import Status
from rlexp.runs.run_directory import LostDirectoryError
from rlexp.tuning.request import TrainingRequest

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


ANSWER: Final = """
import os, subprocess, sys, time
sender = int(sys.argv[1])
def answer():
    print("training", flush=True)
    os.write(sender, b'{"kind": "end", "code": 3, "directory": null}\\n')
def leave_process(*descriptors):
    left = subprocess.Popen(["sleep", "60"], pass_fds=descriptors, start_new_session=True)
    with open(os.environ["LEFT"], "w") as file:
        file.write(str(left.pid))
"""
FAR_BELOW_S: Final = 20.0
"""The processes that are left behind sleep three times as long."""


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file with the process that the training leaves behind, which ends with the test."""
    path = tmp_path / "left"
    monkeypatch.setenv("LEFT", str(path))
    yield path
    if path.exists():
        os.kill(int(path.read_text()), signal.SIGKILL)


def ended(lines: str, monkeypatch: pytest.MonkeyPatch, quiet: bool = True) -> client.Ended:
    """Return how a process ends that does ``lines`` in place of training."""
    monkeypatch.setattr(client, "own_program", lambda module, *words: [sys.executable, "-c", ANSWER + lines, *words])
    started = time.monotonic()
    result = client.train_in_process(TrainingRequest("run", quiet=quiet))
    assert time.monotonic() - started < FAR_BELOW_S
    return result


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("held", ["", "sender"], ids=["its-output", "its-answers-too"])
def test_process_left_with_the_streams_keeps_nobody_waiting(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        result = ended(f"leave_process({held}); answer()", monkeypatch, quiet=False)
    assert (result.exit_code, printed.getvalue()) == (3, "training\n")


def test_process_left_by_one_that_died_keeps_nobody_waiting(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrialError, match="ended with exit code 9"):
        ended("leave_process(sender); os._exit(9)", monkeypatch)
    assert left.exists()


@pytest.mark.parametrize("end", ["time.sleep(60)", "os.close(sender); time.sleep(60)"], ids=["open", "closed"])
def test_process_that_does_not_end_after_its_answer_is_ended(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "END_TIMEOUT_S", 0.5)
    assert ended(f"answer(); {end}", monkeypatch).exit_code == 3


def test_answer_that_is_cut_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrialError, match="was killed by SIGKILL"):
        ended("os.write(sender, b'{\"kind\": '); os.kill(os.getpid(), 9)", monkeypatch)


def test_pictures_are_shown_before_the_answer_also_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(client, "notebook_output", lambda: lambda html, text: shown.append((html, text)))
    lines = """
picture = b'{"kind": "picture", "html": "<b>%d</b>", "text": "%d"}\\n'
os.write(sender, picture % (1, 1) + (picture % (2, 2))[:9]); time.sleep(0.1); os.write(sender, (picture % (2, 2))[9:])
answer()
"""
    monkeypatch.setattr(client, "own_program", lambda module, *words: [sys.executable, "-c", ANSWER + lines, *words])
    assert client.train_in_process(TrainingRequest("run", quiet=True, draws=True)).exit_code == 3
    assert shown == [("<b>1</b>", "1"), ("<b>2</b>", "2")]


def test_process_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(subprocess, "Popen", fail)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="no memory"):
        ended("", monkeypatch)
    assert len(os.listdir("/dev/fd")) == before


def test_a_sweep_that_fails_without_a_failed_trial_says_why(tmp_path: Path) -> None:
    error = failed_run(Run(tmp_path, Status.ERROR, ()))
    assert "no trial has a value of its metric" in error.message
    assert str(tmp_path) in str(error.hint)
