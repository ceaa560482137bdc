"""Checkpoints of small agents that trained for one iteration in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.config.keys.agents import AGENTS
from tests.lab import agents, ppo, pqn

MATCHING_ENV = "tests.lab.ppo:MatchingEnv"
_TINY: Mapping[str, Mapping[str, Any]] = {"DQN": agents.TINY, "PPO": ppo.TINY, "PQN": pqn.TINY}


def saved_checkpoint(folder: Path, run: str, env: str, config: Mapping[str, Any]) -> Path:
    """Return a checkpoint of ``run`` with ``config`` after one iteration."""
    experiment = AGENTS[run].model_validate(
        {"name": "small", "run": run, "env": env, "config": {**_TINY[run], **config, "min_iter_time_s": 0.0}}
    )
    agent = agents.agent_for(experiment)
    agent.train()
    return agents.saved(agent, experiment, folder)


def loaded_checkpoint(folder: Path, run: str, env: str, config: Mapping[str, Any]) -> LoadedCheckpoint:
    """Return the same, read back."""
    return LoadedCheckpoint.load(saved_checkpoint(folder, run, env, config))
