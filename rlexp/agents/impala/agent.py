"""IMPALA: an actor-critic agent whose learner corrects for the age of its workers' policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from rlexp.agents.a2c.agent import PolicyGradientAgent
from rlexp.agents.a2c.learner import PolicyGradientConfig
from rlexp.agents.async_samples_agent import AsyncSamplesAgent
from rlexp.agents.impala.learner import IMPALALearner, VTraceClips
from rlexp.agents.torch.flat_adam import RMSPropConfig
from rlexp.agents.torch.learner_process import Shard
from rlexp.config.keys.impala import IMPALAConfig, VTraceKeys

VTraceKeysT = TypeVar("VTraceKeysT", bound=VTraceKeys)


class VTraceAgent(PolicyGradientAgent[VTraceKeysT], AsyncSamplesAgent[VTraceKeysT]):
    """What IMPALA and APPO share: V-trace, and the choice of RMSProp."""

    def learner_config(self) -> PolicyGradientConfig:
        config = self.config
        rmsprop = RMSPropConfig(config.decay, config.momentum, config.epsilon) if config.opt_type == "rmsprop" else None
        return replace(super().learner_config(), rmsprop=rmsprop)

    def clips(self) -> VTraceClips | None:
        """Return the limits of V-trace; None without it."""
        config = self.config
        if not config.vtrace:
            return None
        return VTraceClips(config.vtrace_clip_rho_threshold, config.vtrace_clip_pg_rho_threshold)


class IMPALAAgent(VTraceAgent[IMPALAConfig]):
    """IMPALA (Espeholt et al. 2018)."""

    def learner_maker(self, seed: int) -> Callable[[str, Shard], IMPALALearner]:
        network, actions = self.policies.network, self.policies.actions
        return partial(IMPALALearner, network, actions, self.learner_config(), self.clips(), seed)
