"""An env with observations and actions of any kind, and checkpoints of agents with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from rlexp.agents.registry import agent_class
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.agents import AGENTS
from rlexp.runs.checkpoint_contents import read_arrays
from rlexp.sample_batch import Array
from tests.lab.agents import saved
from tests.unit.agents.test_strange_checkpoints import with_array

SAMPLED_ENV = "tests.unit.agents.sampled_env:SampledEnv"
NUM_STEPS = 12
OBSERVATIONS: Mapping[str, Space[Any]] = {
    "vector": Box(-1.0, 1.0, (3,), np.float32),
    "matrix": Box(-1.0, 1.0, (2, 3), np.float64),
    "number": Discrete(5),
    "dict": Dict({"place": Box(-1.0, 1.0, (2,), np.float32), "room": Discrete(3)}),
    "tuple": Tuple((MultiBinary(3), MultiDiscrete([2, 4]))),
    "image": Box(0, 255, (16, 12, 3), np.uint8),
}
ACTIONS: Mapping[str, Space[Any]] = {
    "discrete": Discrete(4),
    "box": Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "multi-discrete": MultiDiscrete([9, 7], start=[0, 5]),
}
SMALL: Mapping[str, Any] = {
    "num_workers": 0,
    "model": {"fcnet_hiddens": [8]},
    "timesteps_per_iteration": 32,
    "min_iter_time_s": 0.0,
    "seed": 7,
}
SMALL_OF: Mapping[str, Mapping[str, Any]] = {
    "DQN": {"hiddens": [8], "buffer_size": 200, "learning_starts": 16, "train_batch_size": 8},
    "PPO": {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "sample_batch_size": 16},
    "PQN": {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_envs_per_worker": 2, "sample_batch_size": 16},
}


class SampledEnv(gym.Env[Any, Any]):
    """Draws its observations from its space; the reward tells which action it was given. Ends after NUM_STEPS."""

    def __init__(self, observations: str = "vector", actions: str = "discrete") -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observations], ACTIONS[actions]
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(0 if seed is None else seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._step += 1
        reward = float(np.dot(np.reshape(action, -1), 1000.0 ** np.arange(np.size(action))))
        return self._observation(), reward, False, self._step >= NUM_STEPS, {}

    def _observation(self) -> Any:
        """Return any observation; of an image all but a quarter is dark, since scaled noise is grey everywhere."""
        drawn = self.observation_space.sample()
        if getattr(drawn, "dtype", None) == np.uint8:
            top, left = 8 * (drawn[0, 0, 0] % 2), 6 * (drawn[0, 0, 1] % 2)
            drawn[top : top + 8] = 0
            drawn[:, left : left + 6] = 0
        return drawn


def saved_checkpoint(folder: Path, run: str, env: str = SAMPLED_ENV, **config: Any) -> Path:
    """Return a checkpoint of an agent after one iteration in this process, in the folder of a trial."""
    keys = {"name": "e", "run": run, "env": env, "config": {**SMALL, **SMALL_OF[run], **config}}
    experiment = AGENTS[run].model_validate(keys)
    agent = agent_class(experiment)(env, experiment.config, InlineTaskPool(), 7)
    agent.train()
    path = saved(agent, experiment, folder)
    fill_weights(path, lambda array: np.random.default_rng(array.size).normal(size=array.shape))
    return path


def fill_weights(path: Path, values: Callable[[Array], Any]) -> None:
    """Replace the weights of a checkpoint: an untrained policy chooses nearly always the same."""
    for name in read_arrays(path / "weights.safetensors"):
        with_array(path, "weights", lambda array: array.__setitem__(..., values(array)), name)
