"""Small agents, learners and batches of PQN that train in this process, and what its equations say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, relu

from rlexp.agents.pqn.agent import PQNAgent, PQNLearner, PQNLearnerConfig
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.pqn import PQNConfig
from rlexp.models.network_config import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.models.networks import QNetwork
from rlexp.rollout.folds import VALUE_TARGETS
from rlexp.rollout.fragment import SampleInfo
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.agents import PlacementPool, Update, delivered, stopped_in_the_end, with_weights
from tests.lab.envs import ENDLESS_ENV

NUM_ENVS, LENGTH = 2, 10
TINY: Mapping[str, Any] = {
    "model": {"fcnet_hiddens": [8]},
    "num_workers": 0,
    "num_envs_per_worker": NUM_ENVS,
    "sample_batch_size": LENGTH,
    "train_batch_size": 40,
    "sgd_minibatch_size": 40,
    "num_sgd_iter": 3,
    "lr": 1e-2,
}
"""A train batch is two fragments, and a minibatch."""
LEARNER = PQNLearnerConfig(
    lr=PiecewiseSchedule(((0, 1e-3),)),
    adam_epsilon=1e-8,
    grad_norm_clipping=None,
    num_sgd_iter=2,
    sgd_minibatch_size=16,
)
NETWORK = QNetworkConfig(
    observation_shape=(3,),
    num_actions=4,
    torso=torso_config_of(DQNConfig(model=ModelConfig(fcnet_hiddens=(16,), fcnet_activation="relu", layer_norm=True))),
    head=HeadConfig(hiddens=(), dueling=False),
)


def make_pqn(
    env: str = ENDLESS_ENV,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    pool: TaskPool | None = None,
    **changes: Any,
) -> PQNAgent:
    config = PQNConfig.model_validate({**TINY, **changes})
    return stopped_in_the_end(PQNAgent(env, config, pool or PlacementPool(), seed, checkpoint))


def sample_pqn(polls: int, env: str = ENDLESS_ENV, **changes: Any) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return what the workers of a new agent deliver, with its first weights."""
    return delivered(make_pqn(env, **changes), polls)


def q_network_of(agent: PQNAgent, state: Mapping[str, Array]) -> QNetwork:
    """Return the network of a learner's state."""
    return with_weights(QNetwork(agent.policies.network), state)


def make_learner(seed: int = 0, **changes: Any) -> PQNLearner:
    """Return a learner with a configuration that differs from LEARNER by ``changes``."""
    return PQNLearner(NETWORK, replace(LEARNER, **changes), seed, pytest.fail)


def make_batch(seed: int = 0, count: int = 32) -> SampleBatch:
    """Return a random train batch."""
    rng = np.random.default_rng(seed)
    return SampleBatch(
        {
            OBS: rng.normal(size=(count, 3)).astype(np.float32),
            ACTIONS: rng.integers(NETWORK.num_actions, size=count),
            VALUE_TARGETS: rng.normal(size=count).astype(np.float32),
        }
    )


def in_double(state: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return the weights of a learner's state by their names, as leaves of float64."""
    named = {name: array for name, array in state.items() if name.startswith("network.")}
    return {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in named.items()}


def values_of(weights: Mapping[str, Tensor], obs: Array) -> Tensor:
    """Return the action values ``[B, A]`` of one normalised layer and a plain head, written out."""
    torso = (weights[f"network.torso.{place}.{name}"] for place in (0, 1) for name in ("weight", "bias"))
    weight, bias, gain, shift = torso
    hidden = layer_norm(linear(torch.tensor(obs, dtype=torch.float64), weight, bias), gain.shape, gain, shift)
    return linear(relu(hidden), weights["network.advantage_head.0.weight"], weights["network.advantage_head.0.bias"])


def reference(config: PQNConfig, update: Update, **keys: Any) -> tuple[dict[str, Tensor], float]:
    """Return the weights and the last loss that the first train batch should come to, if it is one minibatch.

    ``keys`` differ from those of ``config``. Written from the paper's algorithm 1 in float64, with torch's own Adam and
    clipping of gradients.
    """
    config = PQNConfig.model_validate({**config.model_dump(by_alias=True), **keys})
    weights = in_double(update.before)
    adam = torch.optim.Adam(weights.values(), config.lr, eps=config.adam_epsilon)
    actions = torch.tensor(update.batch[ACTIONS]).reshape(-1, 1)
    targets = torch.tensor(update.batch[VALUE_TARGETS], dtype=torch.float64)
    loss = torch.zeros(())
    for _ in range(config.num_sgd_iter):
        errors = values_of(weights, update.batch[OBS]).gather(1, actions).squeeze(1) - targets
        loss = 0.5 * (errors**2).mean()
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if config.grad_norm_clipping is not None:
            torch.nn.utils.clip_grad_norm_(weights.values(), config.grad_norm_clipping)
        adam.step()
    return weights, loss.item()


def distance(update: Update, expected: Mapping[str, Tensor]) -> float:
    """Return by how much the parameters after an update differ from those expected, at most."""
    return max(float(np.abs(update.after[name] - expected[name].detach().numpy()).max()) for name in expected)
