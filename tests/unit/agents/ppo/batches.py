"""Small networks, learners and batches for the tests of PPO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from rlexp.agents.ppo.learner import PPOLearner, PPOLearnerConfig
from rlexp.agents.ppo.policy import PPOPolicy
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models import ActorCriticConfig, torso_config_of
from rlexp.models.action_distributions import actions_of
from rlexp.policy import Weights
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from rlexp.schedules import PiecewiseSchedule

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
    device="cpu",
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
    policy = PPOPolicy(network_config(space), actions_of(space), seed)
    policy.set_weights(make_learner(space).get_weights() if weights is None else weights)
    obs = rng.normal(size=(count, 3)).astype(np.float32)
    actions, outputs = policy.act(obs, np.zeros(count, bool), 0)
    targets = rng.normal(size=(2, count)).astype(np.float32)
    columns = {OBS: obs, ACTIONS: actions, **outputs, ADVANTAGES: targets[0], VALUE_TARGETS: targets[1]}
    batch = policy.postprocess(SampleBatch(columns))
    assert set(batch) == {OBS, ACTIONS, DIST_INPUTS, VF_PREDS, LOGP, ADVANTAGES, VALUE_TARGETS}
    return batch
