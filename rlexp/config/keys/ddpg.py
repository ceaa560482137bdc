"""The keys of DDPG (Lillicrap et al. 2016), TD3 (Fujimoto et al. 2018) and APEX_DDPG (Horgan et al. 2018, section 4.2).

Before them are the keys of all agents with a policy network and critics that learn from replay, so also of SAC.
Defaults are RLlib 0.7's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from rlexp.config.keys.apex import ApexKeys
from rlexp.config.keys.common import (
    BOARD_LINE,
    ActionScaling,
    CommonConfig,
    FactLine,
    NetworkNeeds,
    PlayableActions,
    ReplayNeeds,
    keys_without_effect,
)
from rlexp.config.keys.env_ids import has_discrete_actions
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    LayerSizes,
    Positive,
    PositiveFraction,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.model import Activation, ModelConfig, weights_between
from rlexp.config.keys.replay_keys import DATA_LINE, ReplayKeys


def displayed(*facts: str) -> tuple[FactLine, ...]:
    """Return the lines of a running trial, with ``facts`` about the agent's learning beside Q and its error."""
    learning = ("Q {info/learner/mean_q:short}", "TD error {info/learner/mean_td_error:short}", *facts)
    return *CommonConfig.DISPLAYED, DATA_LINE, FactLine("learning", learning), BOARD_LINE


class CriticModelConfig(ModelConfig):
    """The network between the observation and the layers of policy and critics; each has its own."""

    fcnet_hiddens: LayerSizes = ()


class CriticKeys(ReplayKeys):
    """The keys of replay, of continuous actions and of the learner."""

    ROLLOUT_KEYS = ReplayKeys.ROLLOUT_KEYS | {"pure_exploration_steps"}
    AGENT_COLUMNS = (
        *ReplayKeys.AGENT_COLUMNS,
        *("info/learner/critic_loss", "info/learner/actor_loss", "info/learner/critic_grad_norm"),
        "info/learner/actor_grad_norm",
    )
    num_workers: CountOrZero = 0
    sample_batch_size: Count = 1
    train_batch_size: Count = 256
    grad_norm_clipping: Positive | None = None
    timesteps_per_iteration: CountOrZero | None = 1000
    min_iter_time_s: PositiveOrZero | None = 1.0
    learning_starts: CountOrZero = 1500
    target_network_update_freq: CountOrZero = 0
    model: CriticModelConfig = defaults_of(CriticModelConfig)

    twin_q: bool = False
    """Learn two critics; targets, and SAC's policy, have the lower value of both (Fujimoto et al. 2018, section 4.2).
    """

    pure_exploration_steps: CountOrZero = 0
    """Sampled steps at the start in which actions are uniformly random."""

    @property
    def continuous_actions(self) -> ActionScaling | None:
        """The policy's actions are between -1 and 1."""
        return "normalized"

    @property
    def replay(self) -> ReplayNeeds:
        """The parent's, without first priorities of workers, which have no critics."""
        return replace(super().replay, workers_send_td_errors=False)

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes of the layers of the policy and of a critic, after the model."""
        raise NotImplementedError

    @property
    def network_needs(self) -> NetworkNeeds:
        """A torso and layers for the policy, and as much for each of up to two critics."""
        policy, critic = ((*self.model.dense_sizes, *sizes) for sizes in self.sizes)
        return NetworkNeeds(
            keys="config.model and the layers of policy and critics",
            least_weights=weights_between(policy) + weights_between(critic),
            layer_outputs=sum((*policy, *critic)),
        )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        yield "evaluation_config.exploration_final_eps", "evaluations explore as workers do late in training"
        yield "worker_side_prioritization", "workers have no critics: new rows get the highest priority so far"
        yield from keys_without_effect((self.is_greedy, ("pure_exploration_steps",), "explore is false"))


class DDPGConfig(CriticKeys):
    """What is under ``config:`` for ``run: DDPG``."""

    ROLLOUT_KEYS = CriticKeys.ROLLOUT_KEYS.union(
        ("exploration_noise_type", "exploration_ou_theta", "exploration_ou_sigma", "per_worker_exploration")
    )
    AGENT_COLUMNS = (*CriticKeys.AGENT_COLUMNS, "info/noise_scale")
    DISPLAYED = displayed("noise {info/noise_scale:short}")
    KEPT_BY_PBT = (
        *CriticKeys.KEPT_BY_PBT,
        *("actor_hiddens", "actor_hidden_activation", "critic_hiddens", "critic_hidden_activation", "twin_q"),
    )

    lr: Positive = 1e-3
    tau: PositiveFraction = 0.002
    pure_exploration_steps: CountOrZero = 1000

    actor_lr: Positive | None = None
    """Learning rate of the policy. Null: ``lr`` or ``lr_schedule``."""

    critic_lr: Positive | None = None
    """Learning rate of the critics. Null: ``lr`` or ``lr_schedule``."""

    actor_hiddens: LayerSizes = (400, 300)
    """Sizes of the layers of the policy, after the model. The tanh of its outputs is scaled to the bounds of the
    env."""

    actor_hidden_activation: Activation = "relu"
    """Activation after each of the ``actor_hiddens`` layers."""

    critic_hiddens: LayerSizes = (400, 300)
    """Sizes of the layers of a critic, after the model. They see the action as well."""

    critic_hidden_activation: Activation = "relu"
    """Activation after each of the ``critic_hiddens`` layers."""

    policy_delay: Count = 1
    """Updates of the critics for each update of the policy and of the target networks."""

    smooth_target_policy: bool = False
    """Add noise to the actions of the target policy (Fujimoto et al. 2018, section 5.3)."""

    target_noise: PositiveOrZero = 0.2
    """Standard deviation of this noise, in half the range of actions."""

    target_noise_clip: PositiveOrZero = 0.5
    """The largest noise of ``smooth_target_policy``, in half the range of actions."""

    use_huber: bool = False
    """Use the Huber loss for the critics' errors. False: half the squared error."""

    huber_threshold: Positive = 1.0
    """The error from which the Huber loss is linear."""

    l2_reg: PositiveOrZero = 1e-6
    """Factor of half the squared weights that the loss of each network has added."""

    exploration_noise_type: Literal["ou", "gaussian"] = "ou"
    """The noise on actions. ``ou``: an Ornstein-Uhlenbeck process, which is 0 at each start of an episode.
    ``gaussian``: independent noise at each step."""

    exploration_ou_noise_scale: PositiveOrZero = 0.1
    """Factor of the process, as a part of the range of actions."""

    exploration_ou_theta: Fraction = 0.15
    """Part of itself that the process loses in each step."""

    exploration_ou_sigma: PositiveOrZero = 0.2
    """Standard deviation of what is added to the process in each step."""

    exploration_gaussian_sigma: PositiveOrZero = 0.1
    """Standard deviation of ``gaussian`` noise, in half the range of actions."""

    exploration_initial_scale: Annotated[PositiveOrZero, RLEXP_ONLY] = 1.0
    """Factor of the noise after ``pure_exploration_steps``."""

    exploration_final_scale: PositiveOrZero = 1.0
    """Factor of the noise at the end of its schedule."""

    exploration_scale_timesteps: Annotated[CountOrZero, RLEXP_ONLY] = 10_000
    """Sampled steps over which the factor changes linearly from its first to its last value."""

    per_worker_exploration: bool = False
    """Give worker i of N the constant factor 0.4^(1 + 7 i/(N-1)) instead (Horgan et al. 2018)."""

    @property
    def playable_actions(self) -> PlayableActions:
        """A number for each dimension, between bounds."""
        return PlayableActions(
            spaces=("Box",),
            needs="DDPG, TD3 and APEX_DDPG need a Box of floating-point numbers",
            hint="use DQN or PPO, or SAC if it is Discrete",
            hint_for_box="use PPO, or let the env round floating-point numbers",
            squashes=True,
        )

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.actor_hiddens, self.critic_hiddens

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        is_ou = self.exploration_noise_type == "ou"
        scales = ("exploration_initial_scale", "exploration_final_scale", "exploration_scale_timesteps")
        of_ou = ("exploration_ou_noise_scale", "exploration_ou_theta", "exploration_ou_sigma")
        of_noise = ("exploration_noise_type", "exploration_gaussian_sigma", "per_worker_exploration", *of_ou, *scales)
        yield from keys_without_effect(
            (self.actor_lr and self.critic_lr, ("lr", "lr_schedule"), "actor_lr and critic_lr are given"),
            (not self.smooth_target_policy, ("target_noise", "target_noise_clip"), "smooth_target_policy is false"),
            (not self.use_huber, ("huber_threshold",), "use_huber is false"),
            (is_ou, ("exploration_gaussian_sigma",), "exploration_noise_type is ou"),
            (not is_ou, of_ou, "exploration_noise_type is gaussian"),
            (self.per_worker_exploration, scales, "per_worker_exploration gives each worker a constant factor"),
            (self.is_greedy, of_noise, "explore is false"),
        )

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield discrete actions, which no noise can be added to."""
        yield from super().env_conflicts(env)
        if has_discrete_actions(env, self.env_config):
            message = f"env {env} has discrete actions; DDPG, TD3 and APEX_DDPG need continuous ones"
            yield Conflict(("env",), message, "use DQN, PPO or SAC")


class TD3Config(DDPGConfig):
    """What is under ``config:`` for ``run: TD3``."""

    tau: PositiveFraction = 0.005
    train_batch_size: Count = 100
    buffer_size: Count = 1_000_000
    learning_starts: CountOrZero = 10_000
    prioritized_replay: bool = False
    pure_exploration_steps: CountOrZero = 10_000
    twin_q: bool = True
    policy_delay: Count = 2
    smooth_target_policy: bool = True
    l2_reg: PositiveOrZero = 0.0
    exploration_noise_type: Literal["ou", "gaussian"] = "gaussian"


class ApexDDPGConfig(ApexKeys, DDPGConfig):
    """What is under ``config:`` for ``run: APEX_DDPG``."""

    per_worker_exploration: bool = True
    tau: PositiveFraction = 1.0
    """Share of the way to the online networks that an update moves the target networks. RLlib's 0.002, at an update in
    500,000 trained steps, hardly moved them."""

    # These are DDPG's: a key that ApexKeys inherits would win over it.
    lr: Positive = 1e-3
    grad_norm_clipping: Positive | None = None
    model: CriticModelConfig = defaults_of(CriticModelConfig)


class DDPGExperiment(Experiment):
    """An experiment with DDPG."""

    AGENT = "rlexp.agents.ddpg.agent:DDPGAgent"
    POLICIES = "rlexp.agents.ddpg.policy:DDPGPolicies"
    run: Literal["DDPG"]
    config: DDPGConfig = defaults_of(DDPGConfig)


class TD3Experiment(DDPGExperiment):
    """An experiment with TD3."""

    run: Literal["TD3"]  # type: ignore[assignment]
    config: TD3Config = defaults_of(TD3Config)


class ApexDDPGExperiment(DDPGExperiment):
    """An experiment with DDPG in the data path of Ape-X."""

    AGENT = "rlexp.agents.ddpg.agent:ApexDDPGAgent"
    run: Literal["APEX_DDPG"]  # type: ignore[assignment]
    config: ApexDDPGConfig = defaults_of(ApexDDPGConfig)
