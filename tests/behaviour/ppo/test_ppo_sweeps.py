"""Sweeps over trials of PPO: what they see of its results, and what their populations can change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.errors import ConfigError
from rlexp.runs.rows import COLUMNS
from tests.behaviour import simulated_sweeps
from tests.behaviour.ppo.ppo_agents import make_ppo
from tests.behaviour.simulated_sweeps import simulated, sweep_of

RATES: dict[str, Any] = {"lr": {"grid_search": [0.1, 0.2]}}


def by_number(trial: Trial, steps: int) -> float:
    """Return a reward by which later trials are better."""
    return float(trial.name.partition("-")[0])


def test_trial_of_ppo_diverges_where_its_total_loss_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = simulated_sweeps._row

    def of_ppo(steps: int, iteration: int, steps_of_row: int = 0) -> dict[str, Any]:
        loss = math.inf if steps > 500 else 0.5
        return row(steps, iteration, steps_of_row) | {"info": {"learner": {"total_loss": loss}}}

    monkeypatch.setattr(simulated_sweeps, "_row", of_ppo)
    simulation = simulated(sweep_of(tmp_path, RATES, run="PPO"), tmp_path, lambda trial, steps: 1.0)
    errors = [failure.error for failure in simulation.search.standings.failures()]
    assert errors == ["diverged: info/learner/total_loss is inf after 600 env steps"] * 2


@pytest.mark.parametrize(
    "axis",
    [
        {"clip_param": {"uniform": [0.1, 0.3]}},
        {"entropy_coeff": {"uniform": [0.0, 0.1]}},
        {"train_batch_size": {"choice": [1000, 4000]}},
        {"kl_coeff": {"uniform": [0.1, 0.3]}},
        {"lambda": {"uniform": [0.9, 1.0]}},
    ],
)
def test_populations_can_change_what_ppo_learns_with(axis: dict[str, Any], tmp_path: Path) -> None:
    search = {"scheduler": "pbt", "num_samples": 4, "pbt": {"perturbation_interval": 200}}
    (key,) = axis
    simulation = simulated(sweep_of(tmp_path, axis, search, run="PPO"), tmp_path, by_number)
    changed = [exploit["after"] for exploit in simulation.saved["exploits"]]
    assert changed
    assert {name for each in changed for name in each} == {key}
    assert any(exploit["after"] != exploit["before"] for exploit in simulation.saved["exploits"])


@pytest.mark.parametrize("key", ["num_learners", "use_critic"])
def test_populations_cannot_change_processes_or_networks_of_ppo(key: str, tmp_path: Path) -> None:
    values = {"num_learners": [1, 2], "use_critic": [True, False]}[key]
    search = {"scheduler": "pbt", "num_samples": 2, "pbt": {"perturbation_interval": 200}}
    keys: dict[str, Any] = {"use_gae": False, "batch_mode": "complete_episodes", key: {"choice": values}}
    with pytest.raises(ConfigError) as caught:
        sweep_of(tmp_path, keys, search, run="PPO")
    (problem,) = caught.value.problems
    assert problem.message.endswith("with scheduler: pbt, whose trials copy each other's weights")


def test_every_figure_of_ppo_has_a_column() -> None:
    agent = make_ppo()
    row = agent.train()
    agent.stop()
    names = {f"info/learner/{name}" for name in row["info"]["learner"]}
    assert names <= {*COLUMNS, *agent.config.AGENT_COLUMNS}
    assert "info/num_target_updates" not in {*COLUMNS, *agent.config.AGENT_COLUMNS}
