"""Ctrl-C before a command is ready to answer it.

What is piped into a program that stops reading, as ``head`` does, ends quietly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.lab.run_folders import MadeTrial, make_run

TIMEOUT_S = 60.0
EXPERIMENT = "a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}, config: {num_workers: 0}}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["check", "a.yaml"],
        ["run", "a.yaml", "--dry-run"],
        ["convert", "a.yaml"],
        ["explain"],
        ["schema"],
        ["doctor"],
        ["ls", "."],
        ["ls", "--json", "."],
        ["compare", "run"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_command_whose_reader_has_left_ends_silently(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(EXPERIMENT)
    make_run(tmp_path / "run", [MadeTrial([1.0, 2.0])])
    script = 'exec 3>&1; { "$@"; echo $? >&3; } | true'
    program = [sys.executable, "-m", "rlexp", *words]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *program], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    errors = [line for line in done.stderr.splitlines() if not line.startswith("notice:")]
    assert (done.stdout, errors) == ("141\n", [])


def test_command_without_standard_streams_runs(tmp_path: Path) -> None:
    script = '"$@" <&- >&- 2>&-; echo $?'
    words = [sys.executable, "-m", "rlexp", "explain", "lr"]
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_full_disk_behind_stdout_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "rlexp", "explain", "lr"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write: No space left on device\n")
    assert "Exception" not in done.stderr


INTERRUPT_TIMEOUT_S = 30.0
STUBBORN = """
import os, pathlib, time
try:
    pathlib.Path("importing.tmp").write_text(str(os.getpid()))
    os.rename("importing.tmp", "importing")
    time.sleep(600)
except BaseException:  # as libraries do around what they could do without
    pass
time.sleep(600)
"""


@pytest.mark.parametrize("command", [["run"], ["sweep", "--sweep", "lr=1e-3,1e-4"]])
def test_ctrl_c_ends_a_command_whatever_an_imported_module_does(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "a.yaml").write_text(EXPERIMENT)
    words = [sys.executable, "-m", "rlexp", *command, "a.yaml", "--import", "stubborn", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            importing = importer(tmp_path / "importing", process)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=INTERRUPT_TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT  # for a shell that is 130
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    psutil.wait_procs([importing], timeout=INTERRUPT_TIMEOUT_S)
    assert not importing.is_running()


def importer(file: Path, command: subprocess.Popen[str]) -> psutil.Process:
    """Return the process that imports the module, as soon as it does."""
    deadline = time.monotonic() + INTERRUPT_TIMEOUT_S
    while not file.exists():
        assert time.monotonic() < deadline
        assert command.poll() is None
        time.sleep(0.01)
    return psutil.Process(int(file.read_text()))


def test_sigint_stays_ignored_where_a_shell_has_it_ignored() -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "sys.argv = ['rlexp', 'schema']\n"
        "from rlexp.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=INTERRUPT_TIMEOUT_S)
    assert done.stderr == "True\n"
