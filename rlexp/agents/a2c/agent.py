"""A2C, A3C and PG: the learner makes one step of the policy gradient on each train batch."""

from __future__ import annotations

from typing import TypeVar

import torch

from rlexp.agents.a2c.learner import PolicyGradientConfig, PolicyGradientLearner
from rlexp.agents.actor_critic.agent import ActorCriticAgent
from rlexp.agents.async_samples_agent import AsyncSamplesAgent
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.device import learner_device
from rlexp.config.keys.a2c import A2CConfig, A3CConfig, PGConfig, PolicyGradientKeys
from rlexp.schedules import PiecewiseSchedule, derive_seed

PolicyGradientKeysT = TypeVar("PolicyGradientKeysT", bound=PolicyGradientKeys)


class PolicyGradientAgent(ActorCriticAgent[PolicyGradientKeysT]):
    """An agent that follows the gradient of its policy."""

    def make_learner(self) -> PolicyGradientLearner:
        seed = derive_seed(self.seed, "learner")
        return PolicyGradientLearner(self.policies.network, self.policies.actions, self.learner_config(), seed)

    def learner_config(self) -> PolicyGradientConfig:
        """Return the learner's settings, and set the threads of this process for it."""
        config = self.config
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return PolicyGradientConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            entropy_coeff=PiecewiseSchedule(config.entropy_coeff_schedule or ((0, config.entropy_coeff),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            vf_loss_coeff=config.vf_loss_coeff if config.use_critic else 0.0,
            sums_losses=config.SUMS_LOSSES,
            device=learner_device(config.num_gpus),
        )


class A2CAgent(PolicyGradientAgent[A2CConfig], SyncSamplesAgent[A2CConfig]):
    """A2C: advantage actor-critic with workers in step (Mnih et al. 2016, without the asynchrony)."""


class A3CAgent(PolicyGradientAgent[A3CConfig], AsyncSamplesAgent[A3CConfig]):
    """A3C (Mnih et al. 2016): the learner makes a step on each fragment as it arrives, and no worker waits.

    In the paper each worker computes the gradient of its own fragment, by the weights that it acted with. Here the
    learner computes it by its newest weights. The data is as old, and no ratio corrects for that, as in the paper.
    """

    @property
    def num_steps_of_batch(self) -> int:
        return 1


class PGAgent(PolicyGradientAgent[PGConfig], SyncSamplesAgent[PGConfig]):
    """PG: REINFORCE (Williams 1992), with the discounted return from each step to the end of its episode."""
