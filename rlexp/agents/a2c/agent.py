"""A2C, A3C and PG: the learner makes one step of the policy gradient on each train batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rlexp.agents.a2c.learner import PolicyGradientConfig, PolicyGradientLearner
from rlexp.agents.actor_critic.agent import ActorCriticAgent
from rlexp.agents.async_samples_agent import AsyncSamplesAgent
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.learner_process import Shard
from rlexp.config.keys.a2c import A2CConfig, A3CConfig, PGConfig, PolicyGradientKeys
from rlexp.optimizers.sync_samples_optimizer import TrainBatchLearner
from rlexp.schedules import PiecewiseSchedule, derive_seed

PolicyGradientKeysT = TypeVar("PolicyGradientKeysT", bound=PolicyGradientKeys)


class PolicyGradientAgent(ActorCriticAgent[PolicyGradientKeysT]):
    """An agent that follows the gradient of its policy."""

    def make_learner(self) -> TrainBatchLearner:
        return self.one_learner_or_several(self.learner_maker(derive_seed(self.seed, "learner")), _one_update)

    def learner_maker(self, seed: int) -> Callable[[str, Shard], PolicyGradientLearner]:
        """Return what makes the learner on a device, for a part of each train batch."""
        network, actions = self.policies.network, self.policies.actions
        return partial(PolicyGradientLearner, network, actions, self.learner_config(), seed)

    def learner_config(self) -> PolicyGradientConfig:
        """Return the learner's settings."""
        config = self.config
        return PolicyGradientConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            entropy_coeff=PiecewiseSchedule(config.entropy_coeff_schedule or ((0, config.entropy_coeff),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            vf_loss_coeff=config.vf_loss_coeff if config.use_critic else 0.0,
            sums_losses=config.SUMS_LOSSES,
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


def _one_update(num_rows: int) -> int:
    """Return the updates of a train batch of so many rows."""
    return 1
