"""APPO: IMPALA's workers, and PPO's clipped loss on V-trace advantages of a target network (after Luo et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.a2c import Columns, ForwardPass, PolicyGradientConfig
from rlexp.agents.impala import IMPALALearner, VTraceAgent, VTraceClips
from rlexp.agents.ppo.agent import adapted_kl_coeff, surrogate_losses
from rlexp.agents.torch.learner_process import ALONE, Shard
from rlexp.agents.torch.trained_network import FollowedNetwork
from rlexp.config.keys.impala import APPOConfig
from rlexp.models.action_distributions import Actions
from rlexp.models.lstm import sequences_of
from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.networks import ActorCritic
from rlexp.models.torch_distributions import distribution_of
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import LOGP
from rlexp.sample_batch import OBS, Array, SampleBatch

LARGEST_LOG_CORRECTION: Final = math.log(2.0)
"""The ratio of the policy that acted to the target policy is clipped at 2, as in RLlib."""


@dataclass(frozen=True)
class SurrogateConfig:
    """The settings of APPO's loss."""

    clip_param: float
    kl_coeff: float
    """Initial weight of the KL penalty; 0: there is none."""
    kl_target: float
    target_interval: int
    """Updates between two updates of the target network."""
    tau: float
    """The share of the way by which the target network then moves."""


class APPOLearner(IMPALALearner):
    """A learner of segments by V-trace, or of the workers' own advantages; owns a target network."""

    _trained: FollowedNetwork[ActorCritic]

    def __init__(
        self,
        network: ActorCriticConfig,
        actions: Actions,
        config: PolicyGradientConfig,
        surrogate: SurrogateConfig,
        clips: VTraceClips | None,
        seed: int,
        device: str = "cpu",
        shard: Shard = ALONE,
    ) -> None:
        """Initialise; ``clips`` None: without V-trace, and so without a target network."""
        super().__init__(network, actions, config, clips, seed, device, shard)
        self._surrogate = surrogate
        self._kl_coeff = surrogate.kl_coeff
        self.num_target_updates = 0

    def make_network(self, network: ActorCriticConfig, seed: int, device: torch.device) -> FollowedNetwork[ActorCritic]:
        settings = self._config.adam_epsilon, self._config.grad_norm_clipping, self._config.rmsprop
        return FollowedNetwork(lambda: ActorCritic(network), seed, device, *settings)

    def passed(self, columns: Columns) -> ForwardPass:
        """Return the forward pass; its reference is the target policy, or without V-trace the one that acted."""
        passed = super().passed(columns)
        if self._clips is None:
            return passed
        with torch.no_grad():
            inputs, _ = self._trained.target(columns[OBS], sequences_of(columns))
        target = distribution_of(self._actions, inputs)
        return replace(passed, reference=target, reference_logp=target.log_prob(passed.taken))

    def corrected_logp(self, passed: ForwardPass) -> Tensor:
        assert passed.reference_logp is not None
        return passed.reference_logp

    def policy_losses(self, columns: Columns, passed: ForwardPass, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clipped losses ``[B]`` with the KL penalty, and their gradient by the inputs ``[B, K]``.

        With mu the policy that acted and pi' the target policy, the ratio is ``clip(mu / pi', 0, 2) pi / mu``: it is
        ``pi / pi'`` unless the target policy has become more than twice as unlikely to act so.
        """
        assert passed.reference is not None
        assert passed.reference_logp is not None
        old_logp = passed.reference_logp
        if self._clips is not None:
            old_logp = torch.maximum(old_logp, columns[LOGP] - LARGEST_LOG_CORRECTION)
        losses, of_logp, _ = surrogate_losses(passed.logp, old_logp, advantages, self._surrogate.clip_param)
        of_inputs = of_logp.unsqueeze(1) * passed.distribution.log_prob_gradient(passed.taken)
        if self._kl_coeff:
            losses = losses + self._kl_coeff * passed.distribution.kl_from(passed.reference)
            of_inputs += self._kl_coeff * passed.distribution.kl_gradient(passed.reference)
        return losses, of_inputs

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Make one step on a train batch; then update the target network and the KL coefficient if they are due."""
        result = super().learn_on_batch(batch, should_stop)
        stats = {**result.stats, "cur_kl_coeff": self._kl_coeff}
        if self.num_updates % self._surrogate.target_interval == 0:
            self._trained.move_target(self._surrogate.tau)
            self.num_target_updates += 1
            self._kl_coeff = adapted_kl_coeff(self._kl_coeff, stats["kl"], self._surrogate.kl_target)
        return LearnResult(stats)

    def stats(self) -> Mapping[str, float | None]:
        return {**super().stats(), "num_target_updates": self.num_target_updates}

    def state_dict(self) -> Mapping[str, Array]:
        kl_coeff = np.array([self._kl_coeff, self._surrogate.kl_coeff])
        return {**super().state_dict(), "kl_coeff": kl_coeff, "target_updates": np.array(self.num_target_updates)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self.num_target_updates = int(state["target_updates"])
        kl_coeff, first_kl_coeff = state["kl_coeff"].tolist()
        # A user or pbt may give another value than the checkpoint's; it is then adapted from there.
        self._kl_coeff = kl_coeff if first_kl_coeff == self._surrogate.kl_coeff else self._surrogate.kl_coeff


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
