"""A checkpoint that somebody else made is played, but no module is imported because it says so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.evaluation import EvaluationRequest, evaluate_checkpoint
from rlexp.errors import CheckpointError, ResumeError, UsageError
from tests.behaviour.rollout_agents import make_agent
from tests.envs import COUNTING_ENV
from tests.forged import forge


def saved(folder: Path, env: str = COUNTING_ENV, **metadata: Any) -> Path:
    agent = make_agent()
    agent.train()
    config = agent.config.model_dump(mode="json")
    experiment = {"name": "e", "run": "DQN", "env": env, "config": config}
    path = agent.save(folder / "checkpoint_000001", {"experiment": experiment, **metadata})
    agent.stop()
    return path


@pytest.mark.parametrize("metadata", [{}, {"imports": ["tests.envs"]}])
def test_ones_own_may_name_modules(metadata: dict[str, Any], tmp_path: Path) -> None:
    assert len(evaluate_checkpoint(saved(tmp_path, **metadata), EvaluationRequest(2)).played.returns) == 2


@pytest.mark.parametrize(
    ("env", "metadata"),
    [("tests.module_of_a_stranger:Env", {}), ("CartPole-v1", {"imports": ["tests.module_of_a_stranger"]})],
)
def test_a_strangers_may_not(
    env: str, metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, env, **metadata)
    with pytest.raises(UsageError, match="cannot be imported"):
        evaluate_checkpoint(path, EvaluationRequest(1))
    path.chmod(0o777)
    with pytest.raises(ResumeError, match="may be written by every user"):
        evaluate_checkpoint(path, EvaluationRequest(1))
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(ResumeError, match="belongs to another user"):
        evaluate_checkpoint(path, EvaluationRequest(1))


@pytest.mark.parametrize(
    "change", [{"imports": 3}, {"imports": [1]}, {"imports": "os"}, {"experiment": [1]}, {"experiment": {"run": "DQN"}}]
)
def test_metadata_of_another_kind_are_an_error_of_the_checkpoint(change: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tmp_path)
    forge(path, metadata={**json.loads((path / "manifest.json").read_bytes())["metadata"], **change})
    with pytest.raises(CheckpointError, match="does not say how it was trained"):
        evaluate_checkpoint(path, EvaluationRequest(1))


def test_weights_of_another_network_are_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    metadata = json.loads((path / "manifest.json").read_bytes())["metadata"]
    metadata["experiment"]["config"]["model"]["fcnet_hiddens"] = [7, 7, 7]
    forge(path, metadata=metadata)
    with pytest.raises(CheckpointError, match="no weights of its own network"):
        evaluate_checkpoint(path, EvaluationRequest(1))
