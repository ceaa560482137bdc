"""Agents with PPO in this process, and what PPO's equations say that their learners should do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor
from torch.nn.functional import log_softmax

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.agents.ppo.learner import surrogate_losses
from rlexp.cluster.pool import TaskPool
from rlexp.config.keys.ppo import PPOConfig
from rlexp.models.networks import ActorCritic
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, VALUE_TARGETS, VF_PREDS
from rlexp.rollout.fragment import SampleInfo
from rlexp.runs.checkpoints import Checkpoint
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from tests.behaviour.learning_agents import Update
from tests.behaviour.rollout_agents import PlacementPool, poll
from tests.envs import ENDLESS_ENV

ECHO_ENV = "tests.behaviour.ppo.ppo_agents:EchoEnv"
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
WHOLE_EPISODES: Mapping[str, Any] = {"use_gae": False, "batch_mode": "complete_episodes"}


class EchoEnv(gym.Env[Any, Any]):
    """Shows the action that it got last, and pays it; the actions are numbers from -1 to 3."""

    LOW, HIGH = -1.0, 3.0

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Box(self.LOW, self.HIGH, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return np.array(action, np.float32), float(action[0]), False, False, {}


def make_ppo(
    env: str = ENDLESS_ENV,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    pool: TaskPool | None = None,
    **changes: Any,
) -> PPOAgent:
    return PPOAgent(env, PPOConfig.model_validate({**TINY, **changes}), pool or PlacementPool(), seed, checkpoint)


def sample_ppo(polls: int, env: str = ENDLESS_ENV, **changes: Any) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return what the workers of a new agent deliver, with its first weights."""
    agent = make_ppo(env, **changes)
    try:
        return [delivered for _ in range(polls) for delivered in poll(agent)]
    finally:
        agent.stop()


def network_of(agent: PPOAgent, state: Mapping[str, Array]) -> ActorCritic:
    """Return the network of a learner's state."""
    network = ActorCritic(agent.network_config())
    prefix = "network."
    network.load_state_dict({k.removeprefix(prefix): torch.tensor(v) for k, v in state.items() if k.startswith(prefix)})
    return network


def watched_minibatches(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Return a list that fills with the advantages ``[b]`` of each minibatch, as the policy's loss has them."""
    seen: list[Array] = []

    def losses(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip: float) -> Any:
        seen.append(advantages.numpy().copy())
        return surrogate_losses(logp, old_logp, advantages, clip)

    monkeypatch.setattr("rlexp.agents.ppo.learner.surrogate_losses", losses)
    return seen


@dataclass(frozen=True)
class Reference:
    """What PPO does to a network with one choice of actions, where a minibatch is a whole train batch."""

    network: ActorCritic
    total_loss: float
    """Of the last epoch, as the other figures."""
    vf_loss: float
    entropy: float
    kl: float


def reference(agent: PPOAgent, update: Update, **keys: Any) -> Reference:
    """Return what PPO's first train batch should come to with the agent's keys, and other values for ``keys``.

    It is written from the paper's equations, with torch's own Adam and clipping of gradients.
    """
    config = PPOConfig.model_validate({**agent.config.model_dump(by_alias=True), **keys})
    network = network_of(agent, update.before)
    adam = torch.optim.Adam(network.parameters(), config.lr, eps=config.adam_epsilon)
    batch = {name: torch.tensor(column) for name, column in update.batch.columns.items()}
    advantages = (batch[ADVANTAGES] - batch[ADVANTAGES].mean()) / batch[ADVANTAGES].std(correction=0)
    old, taken = log_softmax(batch[DIST_INPUTS], dim=1), batch[ACTIONS].reshape(-1, 1)
    low, high = 1 - config.clip_param, 1 + config.clip_param
    for _ in range(config.num_sgd_iter):
        inputs, values = network(batch[OBS])
        new = log_softmax(inputs, dim=1)
        ratio = torch.exp((new - old).gather(1, taken).squeeze(1))
        gain = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        moved = (values - batch[VF_PREDS]).clamp(-config.vf_clip_param, config.vf_clip_param)
        errors = (values - batch[VALUE_TARGETS], batch[VF_PREDS] + moved - batch[VALUE_TARGETS])
        vf_loss = torch.maximum(errors[0] ** 2, errors[1] ** 2).mean()
        kl, entropy = (old.exp() * (old - new)).sum(dim=1).mean(), -(new.exp() * new).sum(dim=1).mean()
        loss = -gain.mean() + config.vf_loss_coeff * vf_loss + config.kl_coeff * kl - config.entropy_coeff * entropy
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if config.grad_norm_clipping is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.grad_norm_clipping)
        adam.step()
    return Reference(network, *(figure.item() for figure in (loss, vf_loss, entropy, kl)))


def distance(agent: PPOAgent, update: Update, expected: Reference) -> float:
    """Return by how much the parameters after an update differ from those expected, at most."""
    found, wanted = network_of(agent, update.after).state_dict(), expected.network.state_dict()
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
