"""Small learners of PPO, alone or as one of several, and train batches for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rlexp.agents.ppo.advantages import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.agents.ppo.learner import ALONE, PPOLearner, PPOLearnerConfig, Shard
from rlexp.agents.ppo.learner_process import LearnerSpec
from rlexp.models import ActorCriticConfig, TorsoConfig
from rlexp.models.action_distributions import CategoricalActions, GaussianActions
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from rlexp.schedules import PiecewiseSchedule

OBSERVATION_SIZE, SEED = 4, 7
DISCRETE = CategoricalActions((3,), (0,), (), "int64")
CONTINUOUS = GaussianActions((2,), "float32")
CONFIG = PPOLearnerConfig(
    lr=PiecewiseSchedule(((0, 3e-3), (1000, 1e-3))),
    entropy_coeff=PiecewiseSchedule(((0, 0.01),)),
    adam_epsilon=1e-5,
    grad_norm_clipping=0.5,
    num_sgd_iter=3,
    sgd_minibatch_size=16,
    clip_param=0.2,
    vf_clip_param=10.0,
    vf_loss_coeff=0.5,
    kl_coeff=0.2,
    kl_target=0.01,
    device="cpu",
)


def learner_spec(is_continuous: bool = False, num_learners: int = 2, **changes: Any) -> LearnerSpec:
    """Return what learners are built from; ``changes`` are those of the PPOLearnerConfig."""
    actions = CONTINUOUS if is_continuous else DISCRETE
    network = ActorCriticConfig(
        observation_shape=(OBSERVATION_SIZE,),
        num_inputs=actions.num_inputs,
        num_free_log_std=actions.num_inputs // 2 if is_continuous else 0,
        torso=TorsoConfig((16, 16), "tanh", None, "relu", (), "relu", False),
        shares_torso=False,
    )
    config = replace(CONFIG, **changes)
    return LearnerSpec(network, actions, config, SEED, num_learners, num_threads=1, num_gpus=0)


def ppo_learner(spec: LearnerSpec, shard: Shard = ALONE) -> PPOLearner:
    """Return a learner in this process."""
    return PPOLearner(spec.network, spec.actions, spec.config, spec.seed, shard)


def train_batch(seed: int, count: int = 64, is_continuous: bool = False) -> SampleBatch:
    """Return a random train batch."""
    rng = np.random.default_rng(seed)
    num_inputs = (CONTINUOUS if is_continuous else DISCRETE).num_inputs

    def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal((count, *shape)).astype(np.float32)

    inputs = 0.1 * numbers(num_inputs)
    actions = numbers(2) if is_continuous else rng.integers(3, size=count)
    log_prob: Callable[..., Any] = (CONTINUOUS if is_continuous else DISCRETE).log_prob
    return SampleBatch(
        {
            OBS: numbers(OBSERVATION_SIZE),
            ACTIONS: actions,
            LOGP: log_prob(inputs, actions),
            ADVANTAGES: numbers(),
            VALUE_TARGETS: 3.0 * numbers(),
            VF_PREDS: numbers(),
            DIST_INPUTS: inputs,
        }
    )
