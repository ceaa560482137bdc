"""APPO: IMPALA's workers and data path, PPO's loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlexp.agents.appo.learner import APPOLearner, SurrogateConfig
from rlexp.agents.impala.agent import VTraceAgent
from rlexp.agents.torch.learner_process import Shard
from rlexp.config.keys.impala import APPOConfig


class APPOAgent(VTraceAgent[APPOConfig]):
    """Asynchronous PPO (after IMPACT, Luo et al. 2020)."""

    def learner_maker(self, seed: int) -> Callable[[str, Shard], APPOLearner]:
        config, network, actions = self.config, self.policies.network, self.policies.actions
        surrogate = SurrogateConfig(
            clip_param=config.clip_param,
            kl_coeff=config.kl_coeff if config.use_kl_loss else 0.0,
            kl_target=config.kl_target,
            target_interval=config.target_interval,
            tau=config.tau,
        )
        return partial(APPOLearner, network, actions, self.learner_config(), surrogate, self.clips(), seed)
