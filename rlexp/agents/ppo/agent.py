"""PPO: workers sample a train batch with the newest weights, then the learner learns on it."""

from __future__ import annotations

from functools import partial

from rlexp.agents.actor_critic.agent import ActorCriticAgent
from rlexp.agents.ppo.learner import PPOLearner, PPOLearnerConfig
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.config.keys.ppo import PPOConfig
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.optimizers.sync_samples_optimizer import TrainBatchLearner
from rlexp.schedules import PiecewiseSchedule, derive_seed

TARGETS_FAR_ABOVE_CLIP = 10.0
"""Ratio of the mean value targets to ``vf_clip_param`` above which a notice is given."""


class PPOAgent(ActorCriticAgent[PPOConfig], SyncSamplesAgent[PPOConfig]):
    """PPO (Schulman et al. 2017) with several workers that sample at the same time."""

    _has_noticed_targets = False

    def make_learner(self) -> TrainBatchLearner:
        own, seed = learner_config(self.config), derive_seed(self.seed, "learner")
        make = partial(PPOLearner, self.policies.network, self.policies.actions, own, seed)
        return self.one_learner_or_several(make, own.most_updates)

    def stats(self) -> Figures:
        """Return no stats of its own. Add a notice if ``vf_clip_param`` is far below the value targets."""
        target = self.optimizer.learner_stats.get("mean_abs_value_target", 0.0)
        limit = self.config.vf_clip_param
        if self.config.use_critic and target > TARGETS_FAR_ABOVE_CLIP * limit and not self._has_noticed_targets:
            self._has_noticed_targets = True
            self.add_event(
                f"value targets are about {target:,.0f}, but vf_clip_param is {limit:g}: values change slowly;"
                " raise vf_clip_param or scale the rewards"
            )
        return {}


def learner_config(config: PPOConfig) -> PPOLearnerConfig:
    """Return the learner's config from the keys."""
    return PPOLearnerConfig(
        lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
        entropy_coeff=PiecewiseSchedule(config.entropy_coeff_schedule or ((0, config.entropy_coeff),)),
        adam_epsilon=config.adam_epsilon,
        grad_norm_clipping=config.grad_norm_clipping,
        num_sgd_iter=config.num_sgd_iter,
        sgd_minibatch_size=config.whole_minibatch,
        clip_param=config.clip_param,
        vf_clip_param=config.vf_clip_param,
        vf_loss_coeff=config.vf_loss_coeff if config.use_critic else 0.0,
        kl_coeff=config.kl_coeff,
        kl_target=config.kl_target,
    )
