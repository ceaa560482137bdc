"""Commands that train refuse an environment that names a Ray cluster; others say what those would do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.sessions.processes import SESSION

ADDRESS = "10.77.0.1:6379"
EXPERIMENT = "a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}, config: {num_workers: 0}}\n"
REASON = f"RAY_ADDRESS={ADDRESS} names a Ray cluster, and rlexp cannot join one yet"


def rlexp(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.yaml").write_text(EXPERIMENT)
    environment = {name: value for name, value in os.environ.items() if name != SESSION} | {"RAY_ADDRESS": ADDRESS}
    command = [sys.executable, "-m", "rlexp", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "words",
    [["run", "a.yaml"], ["sweep", "a.yaml", "--sweep", "lr=1,2"], ["resume", "results/a"], ["train", "-f", "a.yaml"]],
    ids=lambda words: words[0],
)
def test_command_that_trains_refuses_a_cluster_before_it_creates_anything(words: list[str], tmp_path: Path) -> None:
    done = rlexp(tmp_path, *words)
    assert done.returncode == 4
    assert done.stderr == f"error: {REASON}\nhint:  RLEXP_ADDRESS=local trains in a Ray of its own on this machine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("words", [["check", "a.yaml"], ["run", "a.yaml", "--dry-run"]], ids=" ".join)
def test_command_that_only_checks_notices_it(words: list[str], tmp_path: Path) -> None:
    done = rlexp(tmp_path, *words)
    assert done.returncode == 0
    assert done.stderr.startswith(f"notice: environment  {REASON}; RLEXP_ADDRESS=local")
