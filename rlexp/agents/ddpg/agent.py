"""The agents DDPG, TD3 and Ape-X with DDPG, and what they share with SAC."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import torch

from rlexp.agents.apex.data_path import ApexReplayAgent
from rlexp.agents.ddpg.learner import CriticLearner, DDPGLearner, DDPGLearnerConfig
from rlexp.agents.ddpg.policy import DDPGPolicies, Players, PolicyNetworkPolicies
from rlexp.agents.off_policy_agent import OffPolicyAgent
from rlexp.agents.torch.device import learner_device
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.ddpg import ApexDDPGConfig, CriticKeys, DDPGConfig
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.schedules import PiecewiseSchedule, derive_seed

CriticKeysT = TypeVar("CriticKeysT", bound=CriticKeys)
DDPGConfigT = TypeVar("DDPGConfigT", bound=DDPGConfig)


class CriticAgent(OffPolicyAgent[CriticKeysT]):
    """An agent with a policy network and critics that learn from replay."""

    policies: PolicyNetworkPolicies[Any]

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self._players.parts(worker_index, seed, num_threads)

    def lr_schedule(self, lr: float | None) -> PiecewiseSchedule:
        """Return the schedule of a learning rate; None: the schedule for all networks."""
        config = self.config
        return PiecewiseSchedule(((0, lr),) if lr else config.lr_schedule or ((0, config.lr),))

    def learner_settings(self, policy_lr: float | None, critic_lr: float | None) -> dict[str, Any]:
        """Return the fields that the learner's config has in all these agents; let torch use the driver's CPUs."""
        config = self.config
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return {
            "policy_lr": self.lr_schedule(policy_lr),
            "critic_lr": self.lr_schedule(critic_lr),
            "adam_epsilon": config.adam_epsilon,
            "grad_norm_clipping": config.grad_norm_clipping,
            "target_network_update_freq": config.target_network_update_freq,
            "target_counts_trained": self.target_counts_trained,
            "tau": config.tau,
            "device": learner_device(config.num_gpus),
        }

    @cached_property
    def _players(self) -> Players:
        return Players(self.policies, 0 if self.board is None else self.config.board.actors)


class DDPGAgent(CriticAgent[DDPGConfigT]):
    """DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018), with one replay shard in the learner's process."""

    POLICIES = DDPGPolicies
    policies: DDPGPolicies

    def make_learner(self) -> CriticLearner:
        config = self.config
        learner_config = DDPGLearnerConfig(
            **self.learner_settings(config.actor_lr, config.critic_lr),
            huber_threshold=config.huber_threshold if config.use_huber else None,
            policy_delay=config.policy_delay,
            target_noise=config.target_noise if config.smooth_target_policy else None,
            target_noise_clip=config.target_noise_clip,
            l2_reg=config.l2_reg,
        )
        return DDPGLearner(self.policies.network, learner_config, derive_seed(self.seed, "learner"), self.add_event)

    def stats(self) -> Figures:
        """Return the largest factor of the noise at the steps sampled so far, and the stats of a board."""
        players, sampled = self._players.number, self.optimizer.counters.num_steps_sampled
        late = max(sampled - self.config.pure_exploration_steps, 0)
        return {
            "noise_scale": max(self.policies.scale(index, players).value(late) for index in range(players)),
            **super().stats(),
        }


class ApexDDPGAgent(ApexReplayAgent[ApexDDPGConfig], DDPGAgent[ApexDDPGConfig]):
    """Distributed prioritized experience replay with DDPG (Horgan et al. 2018, section 4.2)."""
