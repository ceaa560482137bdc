"""IMPALA: an actor-critic agent whose learner corrects for the age of its workers' policy, by V-trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from torch import Tensor

from rlexp.agents.a2c import (
    Columns,
    Credit,
    ForwardPass,
    PolicyGradientAgent,
    PolicyGradientConfig,
    PolicyGradientLearner,
    weighted,
)
from rlexp.agents.async_samples_agent import AsyncSamplesAgent
from rlexp.agents.torch.flat_adam import RMSPropConfig
from rlexp.agents.torch.learner_process import ALONE, Shard
from rlexp.config.keys.impala import IMPALAConfig, VTraceKeys
from rlexp.models.action_distributions import Actions
from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.torch_distributions import distribution_of
from rlexp.rollout.folds import DIST_INPUTS, IS_STEP, LOGP
from rlexp.sample_batch import ACTIONS, DISCOUNTS, OBS, REWARDS, Array, SampleBatch


@dataclass(frozen=True)
class VTraceClips:
    """The largest ratios of probabilities that V-trace uses."""

    rho: float
    """rho-bar: bounds by how much a step moves the values; decides which policy's values they are."""
    pg_rho: float
    """The same bound in the policy's gradient."""


def suffix_sums(addends: Tensor, factors: Tensor) -> Tensor:
    """Return ``x [B]`` with ``x_i = addends_i + factors_i x_{i+1}``; the last factor must be 0.

    The reach of the sums doubles with each round (Hillis and Steele 1986), so that B rows take log2(B) operations.
    """
    sums, products, reach = addends.clone(), factors.clone(), 1
    while reach < len(sums):
        sums[:-reach] += products[:-reach] * sums[reach:]
        products[:-reach] = products[:-reach] * products[reach:]
        reach *= 2
    return sums


def vtrace(
    values: Tensor, rewards: Tensor, discounts: Tensor, is_step: Tensor, log_ratios: Tensor, *, clips: VTraceClips
) -> tuple[Tensor, Tensor]:
    """Return the V-trace targets of the values, and the advantages, of rows ``[B]`` as ``Segments`` lays them out.

    ``log_ratios`` compare the probabilities of the learned policy with the acting one's. Targets follow equation
    1 in the recursive form of remark 1 (Espeholt et al. 2018), with ``c`` clipped at 1; section 4.2 has
    the advantages. The target of a row that is not a step is its value; its advantage has no meaning.
    """
    ratios = log_ratios.exp()
    following = values.roll(-1)
    deltas = is_step * ratios.clamp(max=clips.rho) * (rewards + discounts * following - values)
    corrections = suffix_sums(deltas, is_step * discounts * ratios.clamp(max=1.0))
    targets = values + corrections
    advantages = ratios.clamp(max=clips.pg_rho) * (rewards + discounts * targets.roll(-1) - values)
    return targets, advantages


class IMPALALearner(PolicyGradientLearner):
    """A learner of segments by V-trace; or of the workers' own advantages, without a correction."""

    def __init__(
        self,
        network: ActorCriticConfig,
        actions: Actions,
        config: PolicyGradientConfig,
        clips: VTraceClips | None,
        seed: int,
        device: str = "cpu",
        shard: Shard = ALONE,
    ) -> None:
        """Initialise; ``clips`` None: without V-trace."""
        self._clips = clips
        super().__init__(network, actions, config, seed, device, shard)

    @property
    def columns(self) -> tuple[str, ...]:
        followed = (*super().columns,) if self._clips is None else (OBS, ACTIONS, REWARDS, DISCOUNTS, IS_STEP)
        return *followed, LOGP, DIST_INPUTS

    def num_learned(self, batch: SampleBatch) -> int:
        return super().num_learned(batch) if self._clips is None else int(np.count_nonzero(batch[IS_STEP]))

    def part_starts(self, batch: SampleBatch) -> Array:
        """Return the first rows of segments; without V-trace, of sequences or all rows."""
        if self._clips is None:
            return super().part_starts(batch)
        return np.flatnonzero(np.concatenate([[True], ~batch[IS_STEP][:-1]]))

    def passed(self, columns: Columns) -> ForwardPass:
        """Return the forward pass, with the policy that acted as reference."""
        acted = distribution_of(self._actions, columns[DIST_INPUTS])
        return replace(super().passed(columns), reference=acted, reference_logp=columns[LOGP])

    def credit(self, columns: Columns, passed: ForwardPass) -> Credit:
        """Return V-trace of the steps by the newest values, or what the workers computed."""
        if self._clips is None:
            return super().credit(columns, passed)
        is_step = columns[IS_STEP].to(passed.values.dtype)
        log_ratios = self.corrected_logp(passed) - columns[LOGP]
        steps = columns[REWARDS], columns[DISCOUNTS], is_step, log_ratios
        targets, advantages = vtrace(passed.values, *steps, clips=self._clips)
        return Credit(advantages, targets, is_step)

    def corrected_logp(self, passed: ForwardPass) -> Tensor:
        """Return the logarithms ``[B]`` of the probabilities in the policy whose values V-trace estimates."""
        return passed.logp

    def figures(self, columns: Columns, passed: ForwardPass, weights: Tensor) -> Mapping[str, Tensor]:
        """Return how far the learned policy is from its reference."""
        assert passed.reference is not None
        return {"kl": weighted(passed.distribution.kl_from(passed.reference), weights).sum()}


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
