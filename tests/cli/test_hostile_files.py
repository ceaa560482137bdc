"""Runs that a stranger made: commands that read them are neither held up nor ended by a file that is none."""

from __future__ import annotations

import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rlexp.agents.checkpoint import EvaluationRequest, film_checkpoint_to
from rlexp.cli import app
from rlexp.errors import RlexpError
from rlexp.replay.buffers import write_npz
from rlexp.runs.checkpoints import write_checkpoint
from rlexp.runs.tensorboard import TensorBoardRecorder
from tests.lab.run_folders import MadeTrial, make_run, row, write_resolved

BOUND_S = 20
"""Reading one of the files below as it is would take far longer, or never end."""
NOBODY = 65534
TRIAL = "00000-DQN-CartPole-v1"
FILES = (
    "run.json",
    "resolved.yaml",
    "rlexp.lock",
    *(f"{TRIAL}/{name}" for name in ("params.json", "result.json", "events.out.tfevents.1.here", ".phase")),
    *(f"{TRIAL}/checkpoint_000001/{name}" for name in ("manifest.json", "state.json", "learner.safetensors")),
)
COMMANDS: tuple[Callable[[Path], list[str]], ...] = (
    lambda run: ["ls", str(run.parent)],
    lambda run: ["ls", str(run), "--json"],
    lambda run: ["logs", str(run)],
    lambda run: ["compare", str(run), str(run.parent / "good")],
    lambda run: ["check", str(run / "resolved.yaml")],
    lambda run: ["evaluate", str(run), "--episodes", "1"],
    lambda run: ["resume", str(run)],
    lambda run: ["export", str(run), "--onnx", str(run.parent / "policy.onnx"), "--overwrite"],
)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "huge": sparse,
    "directory": Path.mkdir,
}


@pytest.fixture
def run() -> Iterator[Path]:
    """A run with a file of each kind, beside a good one, in a folder that every user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        make_run(Path(folder, "good"), [MadeTrial([1.0, 2.0, 3.0], seed) for seed in (1, 2)])
        run = make_run(Path(folder, "strange"), [MadeTrial([1.0, 2.0, 3.0])])
        write_resolved(run, {"strange": {"run": "DQN", "env": "CartPole-v1"}})
        write_checkpoint(run / TRIAL / "checkpoint_000001", {"learner": {"w": np.ones(4)}}, {"a": 1}, {"metrics": {}})
        with closing(TensorBoardRecorder(run / TRIAL, {})) as recorder:
            recorder.record(row(1, 2.0))
        next((run / TRIAL).glob("events*")).rename(run / TRIAL / "events.out.tfevents.1.here")
        yield run


@contextmanager
def bounded() -> Iterator[None]:
    """Raise an error in what goes on for longer than BOUND_S."""

    def end(*_: object) -> None:
        raise AssertionError(f"not over after {BOUND_S} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(BOUND_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def without_rights() -> Iterator[None]:
    """Be a user who may not read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def invoke(*arguments: str) -> tuple[int, str]:
    """Return exit code and output of a command; an error that is not for its user fails the test."""
    with bounded():
        result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, RlexpError | SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", FILES)
def test_no_file_of_a_run_holds_a_command_up(run: Path, file: str, kind: str) -> None:
    (run / file).unlink(missing_ok=True)
    KINDS[kind](run / file)
    for arguments in COMMANDS:
        invoke(*arguments(run))
    assert "good" in invoke("ls", str(run.parent))[1]
    assert invoke("compare", str(run.parent / "good"), str(run.parent / "good" / TRIAL))[0] != 0


@pytest.mark.parametrize("closed", ["", *FILES])
def test_what_may_not_be_read_is_left_out_and_named(run: Path, closed: str) -> None:
    (run / closed).touch()
    (run / closed).chmod(0)
    try:
        with without_rights():
            code, listed = invoke("ls", str(run.parent))
            assert code == 0
            assert "good" in listed
            assert "strange" in listed
            code, compared = invoke("compare", str(run), str(run.parent / "good"))
            assert code == 0
            assert "good" in compared
            for arguments in COMMANDS[2:6]:
                invoke(*arguments(run))
    finally:
        (run / closed).chmod(0o755)


OTHERS: dict[str, Callable[[Path], None]] = {
    "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a link": lambda path: path.symlink_to(path.with_name("elsewhere")),
}


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        *(("--html", kind) for kind in OTHERS),
        *((option, "a pipe") for option in ("--png", "--onnx", "--actor", "--video", "replay")),
    ],
)
def test_outputs_replace_regular_files_only(run: Path, option: str, kind: str) -> None:
    folder = run.parent / "output"
    folder.mkdir()
    file = folder / {"--actor": "a.token", "--video": f"{TRIAL}-checkpoint_000001.mp4"}.get(option, "output")
    if kind == "a device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    OTHERS[kind](file)
    before = file.lstat()
    with pytest.raises((RlexpError, OSError), match=f"{kind}, not a regular file"):
        written(run, option, file)
    assert not list(folder.glob(".*"))
    assert os.path.samestat(file.lstat(), before)


def written(run: Path, option: str, file: Path) -> None:
    """Let an option write to a file; raises what ends the command."""
    if option == "replay":
        write_npz(file, {}, {})
        return
    if option == "--video":
        film_checkpoint_to(file.parent, run / TRIAL / "checkpoint_000001", EvaluationRequest())
    commands = {
        "--html": ["compare", str(run.parent / "good"), "--html", str(file)],
        "--png": ["compare", str(run.parent / "good"), "--png", str(file)],
        "--onnx": ["export", str(run), "--onnx", str(file), "--overwrite"],
        "--actor": ["board", "keys", "--out", str(file.parent), "--actor", "a"],
    }
    result = CliRunner().invoke(app, commands[option])
    assert result.exception is not None
    raise result.exception
