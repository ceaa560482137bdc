"""Agents with PPO in this process, and what PPO's equations say that their learners should do.

Small agents of PPO that train in this process, and envs that they learn within a second.

Small networks, learners and batches for the tests of PPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from torch import Tensor
from torch.nn.functional import log_softmax

from rlexp.agents.actor_critic.policy import ActorCriticPolicy
from rlexp.agents.ppo.agent import PPOAgent, PPOLearner, PPOLearnerConfig, surrogate_losses
from rlexp.cluster.pool.pool import InlineTaskPool, TaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.ppo import PPOConfig
from rlexp.models.action_distributions import actions_of
from rlexp.models.lstm import sequences_of
from rlexp.models.network_config import ActorCriticConfig, torso_config_of
from rlexp.models.networks import ActorCritic
from rlexp.policy import Weights
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.rollout.fragment import SampleInfo
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.agents import PlacementPool, Update, delivered, stopped_in_the_end, with_weights
from tests.lab.envs import ENDLESS_ENV

ECHO_ENV = "tests.lab.ppo:EchoEnv"
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
    config = PPOConfig.model_validate({**TINY, **changes})
    return stopped_in_the_end(PPOAgent(env, config, pool or PlacementPool(), seed, checkpoint))


def sample_ppo(polls: int, env: str = ENDLESS_ENV, **changes: Any) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return what the workers of a new agent deliver, with its first weights."""
    return delivered(make_ppo(env, **changes), polls)


def network_of(agent: PPOAgent, state: Mapping[str, Array]) -> ActorCritic:
    """Return the network of a learner's state."""
    return with_weights(ActorCritic(agent.policies.network), state)


def watched_minibatches(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Return a list that fills with the advantages ``[b]`` of each minibatch, as the policy's loss has them."""
    seen: list[Array] = []

    def losses(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip: float) -> Any:
        seen.append(advantages.numpy().copy())
        return surrogate_losses(logp, old_logp, advantages, clip)

    monkeypatch.setattr("rlexp.agents.ppo.agent.surrogate_losses", losses)
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
        inputs, values = network(batch[OBS], sequences_of(batch))
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


MATCHING_ENV = "tests.lab.ppo:MatchingEnv"
SMALL: Mapping[str, Any] = {
    "num_workers": 0,
    "num_envs_per_worker": 4,
    "sample_batch_size": 16,
    "train_batch_size": 128,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 4,
    "lr": 1e-2,
    "batch_mode": "truncate_episodes",
    "observation_filter": "NoFilter",
    "timesteps_per_iteration": 256,
    "min_iter_time_s": 0.0,
    "model": {"fcnet_hiddens": [16]},
}


class MatchingEnv(gym.Env[Any, Any]):
    """One-step episodes; the observation says which action of the space is right, and others pay less."""

    SPACES: Mapping[str, Space[Any]] = {
        "multi-discrete": MultiDiscrete([3, 2], start=[0, 5]),
        "box": Box(-1.0, 1.0, (2,)),
    }

    def __init__(self, space: str, scale: float = 1.0) -> None:
        self.observation_space = Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = self.SPACES[space]
        self._low, self._size = {
            "multi-discrete": (np.array([0.0, 5.0]), np.array([2.0, 1.0])),
            "box": (np.array([-1.0, -1.0]), np.array([2.0, 2.0])),
        }[space]
        self._right = self._low
        self._scale = scale

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        distance = float(np.abs((np.reshape(action, -1) - self._right) / self._size).mean())
        return self._draw(), self._scale * (1.0 - distance), True, False, {}

    def _draw(self) -> Array:
        place = self.np_random.random(len(self._low))
        if not isinstance(self.action_space, Box):
            place = np.round(place * self._size) / self._size
        self._right = self._low + place * self._size
        obs = np.zeros(2, np.float32)
        obs[: len(place)] = 4 * place - 2
        return obs


def make_agent(env: str, changes: Mapping[str, Any], checkpoint: Checkpoint | None = None, seed: int = 3) -> PPOAgent:
    """Return an agent with a configuration that differs from SMALL by ``changes``."""
    return PPOAgent(env, PPOConfig.model_validate({**SMALL, **changes}), InlineTaskPool(), seed, checkpoint)


CHOICES = Discrete(4)
NUMBERS = Box(-1.0, 1.0, (2,))
LEARNER = PPOLearnerConfig(
    lr=PiecewiseSchedule(((0, 1e-3),)),
    entropy_coeff=PiecewiseSchedule(((0, 0.01),)),
    adam_epsilon=1e-8,
    grad_norm_clipping=None,
    num_sgd_iter=2,
    sgd_minibatch_size=16,
    clip_param=0.2,
    vf_clip_param=10.0,
    vf_loss_coeff=0.5,
    kl_coeff=0.2,
    kl_target=0.01,
)


def network_config(
    space: Space[Any], observation_shape: tuple[int, ...] = (3,), shares_torso: bool = False, **model: Any
) -> ActorCriticConfig:
    """Return the shape of a small network; ``model`` differs from one hidden layer of 16."""
    torso = torso_config_of(DQNConfig(model=ModelConfig(**{"fcnet_hiddens": (16,), **model})))
    return ActorCriticConfig(observation_shape, actions_of(space).num_inputs, 0, torso, shares_torso)


def make_learner(space: Space[Any] = CHOICES, seed: int = 0, **changes: Any) -> PPOLearner:
    """Return a learner with a configuration that differs from LEARNER by ``changes``."""
    return PPOLearner(network_config(space), actions_of(space), replace(LEARNER, **changes), seed)


def make_batch(
    seed: int = 0, count: int = 32, space: Space[Any] = CHOICES, weights: Weights | None = None
) -> SampleBatch:
    """Return a random train batch, acted by ``weights``: those of a new learner, unless others are given."""
    rng = np.random.default_rng(seed)
    policy = ActorCriticPolicy(network_config(space), actions_of(space), seed)
    policy.set_weights(make_learner(space).get_weights() if weights is None else weights)
    obs = rng.normal(size=(count, 3)).astype(np.float32)
    actions, outputs = policy.act(obs, np.zeros(count, bool), 0)
    targets = rng.normal(size=(2, count)).astype(np.float32)
    columns = {OBS: obs, ACTIONS: actions, **outputs, ADVANTAGES: targets[0], VALUE_TARGETS: targets[1]}
    batch = policy.postprocess(SampleBatch(columns))
    assert set(batch) == {OBS, ACTIONS, DIST_INPUTS, VF_PREDS, LOGP, ADVANTAGES, VALUE_TARGETS}
    return batch
