"""What is piped into a program that stops reading, as ``head`` does, ends quietly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.run_results.run_folders import MadeTrial, make_run

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
