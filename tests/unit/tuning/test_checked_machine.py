"""What a run does before it exists: ``cluster_for``, without the process that tries the envs."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from rlexp.config.load import load_plan
from rlexp.terminal.displays import PlainDisplay
from rlexp.tuning import run

OPTIONS = run.RunOptions(Path("results"), None, False, False, [])


@pytest.mark.parametrize(
    ("agent", "phase"), [("PPO", "trying each env"), ("DQN", "trying each env, and measuring the memory of its replay")]
)
def test_cluster_for_says_what_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, phase: str
) -> None:
    file = tmp_path / "cartpole.yaml"
    file.write_text(f"cartpole: {{run: {agent}, env: CartPole-v1, config: {{num_workers: 0}}}}")
    plan = load_plan([file])
    monkeypatch.setattr(run, "try_envs", lambda *arguments: [])
    shown = StringIO()
    run.cluster_for(plan, plan.trials, PlainDisplay(shown, shown), OPTIONS)
    assert shown.getvalue().rstrip().endswith(f" {phase}")
