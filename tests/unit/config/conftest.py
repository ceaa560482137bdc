"""Fixtures for files with one experiment."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.load import LoadOptions, Plan, load_plan


@pytest.fixture
def load_ppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Load a file with one experiment of PPO and some keys under ``config``."""
    monkeypatch.chdir(tmp_path)

    def to_plan(
        config: str, *overrides: str, env: str = "CartPole-v1", run: str = "PPO", beside: str = "", **options: Any
    ) -> Plan:
        head = f"a:\n  run: {run}\n  env: {env}\n  stop: {{timesteps_total: 100}}\n{beside}"
        Path("f.yaml").write_text(f"{head}  config: {{{config}}}\n")
        return load_plan(["f.yaml"], overrides, 0, LoadOptions(**options))

    return to_plan


@pytest.fixture
def load(load_ppo: Callable[..., Plan]) -> Callable[..., Plan]:
    """Load the same of DQN, or of the agent ``run``."""
    return partial(load_ppo, run="DQN")
