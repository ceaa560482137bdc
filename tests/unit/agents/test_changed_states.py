"""A state that was changed after it was written is an error of the checkpoint, not of whoever continues from it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.workers import check_counters
from rlexp.errors import CheckpointError
from rlexp.runs.checkpoints import Checkpoint, read_checkpoint
from tests.behaviour.rollout_agents import make_agent


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    agent = make_agent()
    agent.train()
    path = agent.save(tmp_path_factory.mktemp("trial") / "checkpoint_000001", {})
    agent.stop()
    return read_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iteration", None),
        ("iteration", "1"),
        ("iteration", -1),
        ("iteration", math.nan),
        ("num_steps_sampled", 1e308),
        ("num_steps_sampled", 10**30),
        ("num_steps_trained", [1]),
        ("episodes_total", True),
        ("time_total_s", math.inf),
        ("time_total_s", "soon"),
    ],
)
def test_counts_that_no_run_has_are_refused_by_name(name: str, value: Any, checkpoint: Checkpoint) -> None:
    check_counters(checkpoint.path, checkpoint.state)
    with pytest.raises(CheckpointError, match=f"{name} in its state is not a"):
        make_agent(checkpoint=replace(checkpoint, state={**checkpoint.state, name: value}))


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "x"},
        {"source": {"a": 1}},
        {"source": {"$array": "missing"}},
        {"episodes": []},
        {"replay": {"x": 1}},
        {"replay": 3},
    ],
    ids=json.dumps,
)
def test_state_of_another_form_is_refused(change: dict[str, Any], checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="does not hold the state of this agent"):
        make_agent(checkpoint=replace(checkpoint, state={**checkpoint.state, **change}))


def test_learner_without_its_arrays_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="does not hold the state of this agent"):
        make_agent(checkpoint=replace(checkpoint, arrays={**checkpoint.arrays, "learner": {}}))


def test_an_unchanged_state_is_loaded(checkpoint: Checkpoint, tmp_path: Path) -> None:
    agent = make_agent(checkpoint=checkpoint)
    assert agent.train()["training_iteration"] == 2
    agent.stop()
