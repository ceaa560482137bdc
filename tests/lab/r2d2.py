"""Small R2D2 agents that train in this process, on an env whose observations tell its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.agents.r2d2.agent import ApexR2D2Agent, R2D2Agent
from rlexp.config.keys.r2d2 import ApexR2D2Config, R2D2Config
from rlexp.runs.checkpoint_contents import Checkpoint
from tests.lab import agents
from tests.lab.agents import ONE_SHARD, CountingPool, PlacementPool, stopped_in_the_end
from tests.lab.envs import ENDLESS_ENV

LENGTH, BURN_IN, CELLS = 5, 3, 6
TINY: Mapping[str, Any] = {
    **agents.TINY,
    "model": {"fcnet_hiddens": [8], "lstm_cell_size": CELLS, "max_seq_len": LENGTH},
    "burn_in": BURN_IN,
    "train_batch_size": 20,
    "batch_mode": "truncate_episodes",
}


def make_agent(
    env: str = ENDLESS_ENV, checkpoint: Checkpoint | None = None, seed: int = 0, **changes: Any
) -> R2D2Agent[R2D2Config]:
    config = R2D2Config.model_validate({**TINY, **changes})
    return stopped_in_the_end(R2D2Agent(env, config, PlacementPool(), seed, checkpoint))


def make_apex(env: str = ENDLESS_ENV, checkpoint: Checkpoint | None = None, **changes: Any) -> ApexR2D2Agent:
    config = ApexR2D2Config.model_validate({**TINY, "optimizer": ONE_SHARD, **changes})
    return stopped_in_the_end(ApexR2D2Agent(env, config, CountingPool(), 0, checkpoint))
