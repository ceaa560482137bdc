"""SAC: samples, stores and learns in turn, with a policy that is drawn from and two critics."""

from __future__ import annotations

from rlexp.agents.ddpg.agent import CriticAgent
from rlexp.agents.ddpg.learner import CriticLearner
from rlexp.agents.sac.learner import SACLearner, SACLearnerConfig
from rlexp.agents.sac.players import SHARE_OF_UNIFORM_ENTROPY, SACPolicies
from rlexp.config.keys.sac import SACConfig
from rlexp.schedules import derive_seed


class SACAgent(CriticAgent[SACConfig]):
    """Soft actor-critic (Haarnoja et al. 2018), with one replay shard in the learner's process."""

    POLICIES = SACPolicies
    policies: SACPolicies

    def make_learner(self) -> CriticLearner:
        config, rates = self.config, self.config.optimization
        learner_config = SACLearnerConfig(
            **self.learner_settings(rates.actor_learning_rate, rates.critic_learning_rate),
            target_entropy=self.policies.target_entropy,
            share_of_allowed=SHARE_OF_UNIFORM_ENTROPY if config.resolved_target_entropy is None else None,
            initial_alpha=config.initial_alpha,
            alpha_lr=self.lr_schedule(rates.entropy_learning_rate),
        )
        return SACLearner(self.policies.network, learner_config, derive_seed(self.seed, "learner"), self.add_event)
