"""SAC: samples, stores and learns in turn. An update steps the entropy's price, the critics, and the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlexp.agents.ddpg.agent import CriticAgent
from rlexp.agents.ddpg.learner import (
    TARGET_NOISE,
    CriticLearner,
    CriticLearnerConfig,
    CriticStep,
    Rates,
    taken_numbers,
)
from rlexp.agents.sac.players import SHARE_OF_UNIFORM_ENTROPY, SACPolicies
from rlexp.agents.torch.device import Tensors
from rlexp.agents.torch.trained_network import TrainedNetwork
from rlexp.config.keys.sac import SACConfig
from rlexp.models.network_config import PolicyAndCriticsConfig
from rlexp.models.torch_distributions import draw_squashed
from rlexp.sample_batch import DISCOUNTS, NEW_OBS, OBS, REWARDS, Array
from rlexp.schedules import PiecewiseSchedule, derive_seed

NOISE = "noise"
"""Name of the noise on the actions for OBS, as TARGET_NOISE is that for NEW_OBS."""


@dataclass(frozen=True, kw_only=True)
class SACLearnerConfig(CriticLearnerConfig):
    """The settings of SAC."""

    target_entropy: float
    """The entropy that alpha is adapted to."""
    initial_alpha: float
    share_of_allowed: float | None = None
    """With action masks, each row has this share of its largest entropy as target; None: all rows have the same."""
    alpha_lr: PiecewiseSchedule
    """Adam's learning rate for the logarithm of alpha as a function of sampled steps."""


class Temperature(nn.Module):
    """Alpha, the price of entropy; its logarithm is learned, so that it stays positive."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


@dataclass(frozen=True)
class Drawn:
    """A policy's actions for observations."""

    actions: Tensor | None
    """Drawn numbers ``[B, D]``; None for discrete actions, which are all regarded."""
    log_probs: Tensor
    """Logarithms of the probabilities: ``[B]`` of the drawn numbers, or ``[B, K]`` of all discrete actions."""
    probabilities: Tensor | None = None
    """Probabilities of discrete actions ``[B, K]``; None for continuous ones."""

    def expected(self, values: Tensor) -> Tensor:
        """Return ``values`` themselves, or their means ``[B]`` over the discrete actions."""
        return values if self.probabilities is None else (self.probabilities * values).sum(dim=1)


class SACLearner(CriticLearner):
    """The learner of SAC (Haarnoja et al. 2018), and of SAC with discrete actions (Christodoulou 2019)."""

    settings: SACLearnerConfig
    policy_figures = ("actor_loss", "actor_grad_norm", "entropy", "alpha", "alpha_loss")

    def __init__(
        self, network: PolicyAndCriticsConfig, config: SACLearnerConfig, seed: int, note: Callable[[str], None]
    ) -> None:
        """Initialise; ``note`` gets notices for the user."""
        super().__init__(network, config, seed, note)
        self._is_discrete, self._masking = network.num_numbers == 0, network.masking
        self._temperature = TrainedNetwork(
            lambda: Temperature(config.initial_alpha), seed, self.device, config.adam_epsilon, None
        )

    @property
    def rates(self) -> tuple[float, ...]:
        return *super().rates, self._lr(self.settings.alpha_lr)

    @property
    def noise_names(self) -> tuple[str, ...]:
        return () if self._is_discrete else (NOISE, TARGET_NOISE)

    def update(self, rows: Tensors, rates: Rates, moves_policy: bool) -> tuple[Sequence[Tensor], CriticStep]:
        log_alpha = self._temperature.module.log_alpha
        drawn = self._drawn(rows[OBS], rows.get(NOISE))
        alpha = log_alpha.detach().exp()
        wanted = self._target_entropy(rows[OBS])
        with torch.no_grad():
            missing = drawn.expected(drawn.log_probs + wanted).mean()
        alpha_loss = self._step_alpha(missing, rates)
        actions = None if self._is_discrete else taken_numbers(rows)
        critics = self.step_critics(rows, actions, self._targets(rows, alpha), rates)
        values = self.critic_networks(rows[OBS], drawn.actions).amin(dim=0)
        loss = drawn.expected(alpha * drawn.log_probs - values).mean()
        norm = self.step_policy(loss, rates)
        entropy = (wanted if isinstance(wanted, float) else wanted.mean()) - missing
        return (loss.detach(), norm, entropy, alpha, alpha_loss), critics

    def state_dict(self) -> Mapping[str, Array]:
        temperature = {f"temperature.{name}": array for name, array in self._temperature.state_dict().items()}
        return {**super().state_dict(), **temperature}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        own = {name.removeprefix("temperature."): each for name, each in state.items() if name.startswith("temp")}
        self._temperature.load_state_dict(own)

    @torch.no_grad()
    def _targets(self, rows: Tensors, alpha: Tensor) -> Tensor:
        """Return ``R + d (min_c Q'_c(s', a') - alpha log pi(a'|s'))`` ``[B]`` (equations 2 and 3).

        Discrete actions have the expectation over a' (Christodoulou 2019, equation 10).
        """
        drawn = self._drawn(rows[NEW_OBS], rows.get(TARGET_NOISE))
        values = self.target_critics(rows[NEW_OBS], drawn.actions).amin(dim=0)
        return rows[REWARDS] + rows[DISCOUNTS] * drawn.expected(values - alpha * drawn.log_probs)

    def _target_entropy(self, obs: Tensor) -> Tensor | float:
        """Return the entropy that alpha is adapted to; ``[B, 1]`` if it depends on the number of allowed actions."""
        if self._masking is None or self.settings.share_of_allowed is None:
            return self.settings.target_entropy
        return self._masking.allowed(obs).sum(dim=1, keepdim=True).log() * self.settings.share_of_allowed

    def _step_alpha(self, missing: Tensor, rates: Rates) -> Tensor:
        """Step down ``-log alpha missing``, the entropy that the policy lacks; return this loss.

        Haarnoja et al. 2018 (equation 18) have alpha in place of its logarithm, but not in their code.
        """
        adam, log_alpha = self._temperature.adam, self._temperature.module.log_alpha
        adam.gradient.copy_(-missing)
        loss = -(log_alpha.detach() * missing)
        adam.step(rates[2])
        return loss

    def _drawn(self, obs: Tensor, noise: Tensor | None) -> Drawn:
        """Return actions for ``obs [B, ...]`` that carry the gradient of the policy (equation 11 and appendix C).

        ``noise [B, D]`` is standard normal; None for discrete actions.
        """
        inputs = self.policy_network(obs)
        if noise is None:
            log_probs = inputs.log_softmax(dim=1)
            return Drawn(None, log_probs, log_probs.exp())
        return Drawn(*draw_squashed(inputs, noise))


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
