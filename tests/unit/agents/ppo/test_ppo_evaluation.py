"""Evaluations of PPO: greedy, or drawn as workers do; by the agent, from a checkpoint, by the command, and filmed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint, film_checkpoint
from rlexp.cli import app
from rlexp.config.keys.ppo import PPOConfig, PPOExperiment
from tests.envs import FILMED_ENV, IDENTITY_ENV
from tests.ones_own import trained
from tests.unit.agents.ppo.agents import MATCHING_ENV, SMALL, make_agent

NUMBERS = {"env_config": {"space": "box"}}


def checkpoint(directory: Path, env: str, changes: dict[str, Any], iterations: int = 0) -> Path:
    """Return a checkpoint of an agent that has trained for ``iterations``."""
    agent = make_agent(env, changes)
    for _ in range(iterations):
        agent.train()
    config = PPOConfig.model_validate({**SMALL, **changes})
    experiment = PPOExperiment(name="evaluated", run="PPO", env=env, config=config)
    (directory / "trial").mkdir()
    trained(experiment)
    path = agent.save(directory / "trial" / "checkpoint_000001", {"experiment": experiment.model_dump(mode="json")})
    agent.stop()
    return path


def test_greedy_evaluation_plays_better_than_the_draws_of_training() -> None:
    agent = make_agent(IDENTITY_ENV, {"lr": 3e-3, "evaluation_interval": 3, "evaluation_num_episodes": 100})
    rows = [agent.train() for _ in range(3)]
    agent.stop()
    greedy = rows[-1]["evaluation"]["episode_reward_mean"]
    assert greedy == 1.0
    assert rows[-1]["episode_reward_mean"] < 0.9


@pytest.mark.parametrize(("env", "changes"), [(IDENTITY_ENV, {}), (MATCHING_ENV, NUMBERS)], ids=["choices", "numbers"])
def test_checkpoint_plays_greedily_or_explores_as_asked(env: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = checkpoint(tmp_path, env, changes, iterations=3)

    def returns(explore: bool | None, seed: int) -> list[float]:
        played = evaluate_checkpoint(path, EvaluationRequest(50, seed, explore))
        assert played.explores == bool(explore)
        assert played.exploration == {}
        found: list[float] = played.played.returns.tolist()
        return found

    greedy, drawn = returns(None, 1), returns(True, 1)
    assert returns(False, 1) == greedy != drawn == returns(True, 1)
    assert np.mean(greedy) > np.mean(drawn)
    assert returns(True, 2) != drawn


def test_evaluation_with_explore_is_the_config_of_the_run(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, IDENTITY_ENV, {"evaluation_config": {"explore": True}}, iterations=1)
    explores = evaluate_checkpoint(path, EvaluationRequest(50, 1))
    greedy = evaluate_checkpoint(path, EvaluationRequest(50, 1, explore=False))
    assert (explores.explores, greedy.explores) == (True, False)
    assert explores.played.returns.mean() < greedy.played.returns.mean()


def test_evaluation_sees_observations_as_the_filter_of_training_does(tmp_path: Path) -> None:
    changes = {"observation_filter": "MeanStdFilter"}
    path = checkpoint(tmp_path, MATCHING_ENV, {**NUMBERS, **changes}, iterations=12)
    assert evaluate_checkpoint(path, EvaluationRequest(100, 1)).played.returns.mean() > 0.9


@pytest.mark.parametrize("explore", [False, True])
def test_checkpoint_is_filmed(explore: bool, tmp_path: Path) -> None:
    pictures, fps = film_checkpoint(checkpoint(tmp_path, FILMED_ENV, {}), EvaluationRequest(explore=explore))
    assert fps == 10.0
    assert len(list(pictures)) == 11


def test_command_evaluates_a_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, IDENTITY_ENV, {}, iterations=4)
    arguments = ["evaluate", str(path), "--episodes", "30", "--seed", "1", "--json"]
    outputs = [CliRunner().invoke(app, [*arguments, *more]).stdout for more in ((), ("--explore",))]
    greedy, drawn = (json.loads(output) for output in outputs)
    assert greedy["returns"] == [1.0] * 30
    assert 0.5 < drawn["return_mean"] <= 1.0
    assert [greedy["explores"], drawn["explores"]] == [False, True]
