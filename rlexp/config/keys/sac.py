"""The keys of SAC (Haarnoja et al. 2018), with discrete actions too (Christodoulou 2019).

Defaults are RLlib's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlexp.config.keys.common import PlayableActions
from rlexp.config.keys.ddpg import CriticKeys, displayed
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    AUTO,
    Count,
    CountOrZero,
    KeyGroup,
    LayerSizes,
    NumberOrAuto,
    Positive,
    PositiveFraction,
    defaults_of,
)
from rlexp.config.keys.model import Activation


class LayersKeys(KeyGroup):
    """The layers of the policy, or of a critic, after the model."""

    fcnet_hiddens: LayerSizes = (256, 256)
    """Sizes of the layers. ``[]``: none."""

    fcnet_activation: Activation = "relu"
    """Activation after each of the ``fcnet_hiddens`` layers."""


class OptimizationConfig(KeyGroup):
    """The learning rates."""

    actor_learning_rate: Positive | None = None
    """Learning rate of the policy. Null: ``lr`` or ``lr_schedule``."""

    critic_learning_rate: Positive | None = None
    """Learning rate of the critics. Null: ``lr`` or ``lr_schedule``."""

    entropy_learning_rate: Positive | None = None
    """Learning rate of the logarithm of alpha, the price of entropy. Null: ``lr`` or ``lr_schedule``."""


class SACConfig(CriticKeys):
    """What is under ``config:`` for ``run: SAC``."""

    MASKS_ACTIONS = True
    AGENT_COLUMNS = (
        *CriticKeys.AGENT_COLUMNS,
        *("info/learner/entropy", "info/learner/alpha", "info/learner/alpha_loss"),
    )
    DISPLAYED = displayed("entropy {info/learner/entropy:short}", "alpha {info/learner/alpha:short}")
    KEPT_BY_PBT = (*CriticKeys.KEPT_BY_PBT, "policy_model_config", "q_model_config", "twin_q")

    lr: Positive = 3e-4
    tau: PositiveFraction = 0.005
    buffer_size: Count = 1_000_000
    prioritized_replay: bool = False
    twin_q: bool = True
    timesteps_per_iteration: CountOrZero | None = 1000

    optimization: OptimizationConfig = defaults_of(OptimizationConfig)
    """The learning rates, if they differ."""

    policy_model_config: LayersKeys = defaults_of(LayersKeys)
    """The layers of the policy, after the model."""

    q_model_config: LayersKeys = defaults_of(LayersKeys)
    """The layers of a critic, after the model."""

    initial_alpha: Positive = 1.0
    """The price of entropy at the start; it is learned."""

    target_entropy: NumberOrAuto = "auto"
    """The entropy to which the price is adapted. ``auto`` or null: minus the number of dimensions of a continuous
    action; 0.98 times the logarithm of the number of discrete ones."""

    @property
    def playable_actions(self) -> PlayableActions:
        """A number for each dimension, between bounds, or one choice."""
        return PlayableActions(
            spaces=("Box", "Discrete"),
            needs="SAC needs a Box of floating-point numbers or a Discrete one",
            hint="use PPO, or wrap the env",
            squashes=True,
        )

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.policy_model_config.fcnet_hiddens, self.q_model_config.fcnet_hiddens

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        rates = self.optimization
        if rates.actor_learning_rate and rates.critic_learning_rate and rates.entropy_learning_rate:
            yield from ((key, "optimization has all learning rates") for key in ("lr", "lr_schedule"))

    @property
    def resolved_target_entropy(self) -> float | None:
        """``target_entropy``; None: the env's actions decide."""
        return None if self.target_entropy == AUTO else self.target_entropy


class SACExperiment(Experiment):
    """An experiment with SAC."""

    AGENT = "rlexp.agents.sac.agent:SACAgent"
    POLICIES = "rlexp.agents.sac.players:SACPolicies"
    run: Literal["SAC"]
    config: SACConfig = defaults_of(SACConfig)
