"""Fixtures that plan a file with one experiment, given the keys under its ``config``."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.load import LoadOptions, Plan, load_plan
from tests.lab.experiment_files import Load


@pytest.fixture
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of the test, to which files are written."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def load_ppo(in_own_folder: None) -> Load:
    """Of PPO, or of the agent ``run``; ``beside`` has the lines between ``stop`` and ``config``."""

    def to_plan(
        config: str = "",
        *overrides: str,
        env: str | None = None,
        run: str = "PPO",
        beside: str = "",
        seed: int | None = 0,
        **options: Any,
    ) -> Plan:
        env = env or ("Pendulum-v1" if run in {"DDPG", "TD3", "APEX_DDPG"} else "CartPole-v1")
        head = f"a:\n  run: {run}\n  env: {env}\n  stop: {{timesteps_total: 1000000}}\n{beside}"
        Path("f.yaml").write_text(head + (f"  config: {{{config}}}\n" if config else ""))
        return load_plan(["f.yaml"], overrides, seed, LoadOptions(**options))

    return to_plan


@pytest.fixture
def load(load_ppo: Load) -> Load:
    """Of DQN, or of the agent ``run``."""
    return partial(load_ppo, run="DQN")


@pytest.fixture
def sweep(load: Load) -> Load:
    """The same as a sweep."""
    return partial(load, seed=None, is_sweep=True)
