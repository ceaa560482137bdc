"""``rlexp run --track`` and ``resume`` as a user meets them: real Ray, Tune and wandb, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlexp.runs.rows import scalars
from tests.integration.test_run_command import TINY, rlexp
from tests.lab.trials import needs_wandb, wandb_logs

pytestmark = [pytest.mark.ray, needs_wandb]


@pytest.mark.slow
def test_a_tracked_run_and_its_resume_are_one_run_of_wandb_with_the_rows_of_result_json(tmp_path: Path) -> None:
    file, run = tmp_path / "small.yaml", tmp_path / "out" / "small"
    file.write_text(f"small:\n  run: DQN\n  env: CartPole-v1\n{TINY}")
    home = str(tmp_path)
    first = rlexp("run", file, "--out", tmp_path / "out", "--track", "wandb", WANDB_MODE="offline", HOME=home)
    assert first.returncode == 0, first.stderr
    assert "tracks with wandb: project rlexp, offline, nothing is sent" in first.stderr
    second = rlexp("resume", run, "-o", "stop.training_iteration=3", WANDB_MODE="offline", HOME=home)
    assert second.returncode == 0, second.stderr
    (results,) = run.glob("*/result.json")
    expected = [dict(scalars(json.loads(line))) for line in results.read_text().splitlines()]
    logs = wandb_logs(run)
    history = [row for log in logs for row in log.history]
    assert [{key: value for key, value in row.items() if not key.startswith("_")} for row in history] == expected
    assert len(expected) == 3
    assert len({log.id for log in logs}) == 1
    assert [log.group for log in logs] == ["small", "small"]
    assert [log.summary["status"] for log in logs] == ["TERMINATED", "TERMINATED"]
    assert not Path.cwd().joinpath("wandb").exists()
