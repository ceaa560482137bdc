"""Small agents of ES and ARS that train in this process, an env that pays what it is told, and what equations say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from rlexp.agents.evolution.agent import ARSAgent, ESAgent, EvolutionAgent
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.evolution import ARSConfig, ESConfig, EvolutionKeys
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import Array, SampleBatch
from tests.lab.agents import PlacementPool, Update, stopped_in_the_end

PAYING_ENV = "tests.lab.evolution:PayingEnv"
STEPS = 3
"""Of an episode of PayingEnv."""
TINY: Mapping[str, Any] = {
    "num_workers": 0,
    "model": {"fcnet_hiddens": []},
    "observation_filter": "NoFilter",
    "num_envs_per_worker": 2,
    "train_batch_size": 1,
}
OWN: Mapping[str, Mapping[str, Any]] = {"ES": {"episodes_per_batch": 8}, "ARS": {"num_rollouts": 4}}
AGENTS: Mapping[str, type[EvolutionAgent[Any]]] = {"ES": ESAgent, "ARS": ARSAgent}
CONFIGS: Mapping[str, type[EvolutionKeys]] = {"ES": ESConfig, "ARS": ARSConfig}


class PayingEnv(gym.Env[Any, Any]):
    """Shows 1 and the step, and pays its action."""

    def __init__(self, limit: float = 100.0) -> None:
        self.observation_space = Box(-100.0, 100.0, (2,), np.float32)
        self.action_space = Box(-limit, limit, (1,), np.float32)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.array([1.0, 0.0], np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.array([1.0, self._step], np.float32), float(action[0]), self._step == STEPS, False, {}


def make_agent(
    run: str,
    env: str = PAYING_ENV,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    pool: TaskPool | None = None,
    **changes: Any,
) -> EvolutionAgent[Any]:
    config = CONFIGS[run].model_validate({**TINY, **OWN[run], **changes})
    return stopped_in_the_end(AGENTS[run](env, config, pool or PlacementPool(), seed, checkpoint))


def make_batch(number: int = 0) -> SampleBatch:
    """Return the directions of a train batch."""
    rng = np.random.default_rng(number)
    return SampleBatch({"seeds": rng.integers(2**63, size=8), "returns": rng.normal(size=(8, 2))})


def flat(state: Mapping[str, Array]) -> Array:
    """Return the parameters of a learner's state one after the other."""
    return np.concatenate([array.ravel() for name, array in state.items() if name.startswith("network.")])


def noises(seeds: Array, size: int) -> Array:
    """Return the noise of each seed ``[B, size]``."""
    return np.array([np.random.default_rng(seed).standard_normal(size, np.float32) for seed in seeds.tolist()])


def pays(weights: Array) -> float:
    """Return what PayingEnv pays a linear policy, whose weights are the layer's and its bias."""
    return float(sum(weights[0] + step * weights[1] + weights[2] for step in range(STEPS)))


def reference(run: str, config: EvolutionKeys, update: Update) -> Array:
    """Return the parameters after a first update in float64: algorithm 1 of either paper, with RLlib's Adam in ES."""
    theta, returns = flat(update.before).astype(np.float64), update.batch["returns"]
    epsilon = noises(update.batch["seeds"], len(theta)).astype(np.float64)
    if run == "ARS":
        assert isinstance(config, ARSConfig)
        best = sorted(range(len(returns)), key=lambda row: -max(returns[row]))[: config.rollouts_used]
        terms = [(returns[row][0] - returns[row][1]) * epsilon[row] for row in best]
        gradient = np.sum(terms, axis=0) / (len(best) * np.std([returns[row] for row in best]))
        return theta + config.lr * clipped(gradient, config)
    assert isinstance(config, ESConfig)
    ranks = np.argsort(np.argsort(returns.ravel())).reshape(returns.shape) / (returns.size - 1) - 0.5
    gradient = sum((rank[0] - rank[1]) * each for rank, each in zip(ranks, epsilon, strict=True)) / returns.size
    loss = config.l2_coeff * theta - clipped(gradient, config)
    expected: Array = theta - config.lr * loss / (np.abs(loss) + config.adam_epsilon)
    return expected


def clipped(gradient: Array, config: EvolutionKeys) -> Array:
    norm = np.linalg.norm(gradient)
    most = config.grad_norm_clipping
    return gradient if most is None or norm <= most else gradient * most / norm
