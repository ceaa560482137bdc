"""The keys of agents that learn a policy, and mostly a value function: advantages, losses, actions."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from rlexp.config.keys.common import (
    ActionScaling,
    CommonConfig,
    LearnerProcesses,
    NetworkNeeds,
    PlayableActions,
    keys_without_effect,
)
from rlexp.config.keys.fields import Conflict, Count, Fraction, PositiveOrZero, Schedule, defaults_of
from rlexp.config.keys.model import LSTM_KEYS, ActorCriticModelConfig


class PolicyActionKeys(CommonConfig):
    """The keys of the actions of a policy that is not bound to the range of the env."""

    MASKS_ACTIONS = True
    ROLLOUT_KEYS = CommonConfig.ROLLOUT_KEYS | {"clip_actions", "normalize_actions"}
    KEPT_BY_PBT = (*CommonConfig.KEPT_BY_PBT, "clip_actions", "normalize_actions")

    clip_actions: bool = True
    """Clip continuous actions to the bounds of the env. The learner uses the actions before clipping."""

    normalize_actions: bool = False
    """Scale continuous actions from [-1, 1] to the bounds of the env, and clip them to these; numbers without two
    bounds are not scaled. The learner uses the actions before this."""

    @property
    def playable_actions(self) -> PlayableActions:
        """A policy chooses each number of an action by itself."""
        return PlayableActions(
            spaces=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
            needs="the agent needs a Discrete, MultiDiscrete, MultiBinary or Box one",
            hint="wrap the env so that its action is one number or one array of numbers, such as MultiDiscrete",
        )

    @property
    def continuous_actions(self) -> ActionScaling | None:
        """``normalize_actions`` also clips, so it has precedence."""
        if self.normalize_actions:
            return "normalized"
        return "clipped" if self.clip_actions else None

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        if self.normalize_actions:
            yield "clip_actions", "normalize_actions clips as well"


class ActorCriticKeys(PolicyActionKeys):
    """The keys of a policy, of its advantages, and of the learners that share its gradient."""

    LEARNERS_KEY = "num_learners"
    ROLLOUT_KEYS = PolicyActionKeys.ROLLOUT_KEYS | {"lambda_", "use_gae", "use_critic"}
    KEPT_BY_PBT = (*PolicyActionKeys.KEPT_BY_PBT, "use_critic", "num_learners", "num_cpus_per_learner")

    model: ActorCriticModelConfig = defaults_of(ActorCriticModelConfig)

    use_gae: bool = True
    """Estimate advantages by GAE (Schulman et al. 2016). False: by the returns, minus the value if there is a critic;
    this needs ``batch_mode: complete_episodes``."""

    use_critic: bool = True
    """Learn a value function. False: advantages are the returns, and there is no value loss; this needs
    ``use_gae: false``."""

    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """GAE's parameter. Near 0 advantages rely on the value function, at 1 on the returns."""

    vf_loss_coeff: PositiveOrZero
    """Weight of the value loss."""

    entropy_coeff: PositiveOrZero = 0.0
    """Weight of the entropy bonus."""

    entropy_coeff_schedule: Schedule = None
    """Weights of the entropy bonus over sampled steps: a list of [timestep, weight]. Linear between them, constant
    after the last. Null: constant ``entropy_coeff``."""

    num_learners: Count = 1
    """Number of learners that share the gradient of each update; several have a process each.

    Batch sizes count all learners together; RLlib's ``minibatch_size`` and ``train_batch_size_per_learner`` are
    multiplied by it. Several learners can only help with GPUs, or for a large network on many CPUs.
    """

    num_cpus_per_learner: PositiveOrZero = 1.0
    """CPUs reserved for each of several learners. A single one uses the driver's."""

    @property
    def learner_processes(self) -> LearnerProcesses | None:
        """A process for each of several learners, with an equal share of the GPUs."""
        if self.num_learners == 1:
            return None
        return LearnerProcesses(self.num_learners, self.num_cpus_per_learner, self.num_gpus / self.num_learners)

    @property
    def workers_send_segments(self) -> bool:
        """Whether workers send steps in order with the policy that acted, instead of advantages."""
        return False

    @property
    def network_needs(self) -> NetworkNeeds:
        """A torso for the policy, and one for the value function unless they share it."""
        number = 1 if self.model.vf_share_layers or self.model.use_lstm else 2
        return NetworkNeeds(
            keys="config.model",
            least_weights=number * self.model.least_weights,
            layer_outputs=number * self.model.layer_outputs,
        )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        shares_lstm = self.model.use_lstm and self.use_critic and not self.model.vf_share_layers
        why = "policy and value function share an LSTM and all layers before it"
        yield from keys_without_effect(
            (not self.model.use_lstm, LSTM_KEYS, "model.use_lstm is false"),
            (shares_lstm, ("model.vf_share_layers",), why),
            (self.entropy_coeff_schedule is not None, ("entropy_coeff",), "entropy_coeff_schedule is given"),
            (not self.use_gae, ("lambda",), "use_gae is false"),
            (not self.use_critic, ("vf_loss_coeff", "model.vf_share_layers"), "use_critic is false"),
            (self.num_learners == 1, ("num_cpus_per_learner",), "there is one learner, in the process of the driver"),
            (True, ("evaluation_config.exploration_final_eps",), "workers explore by sampling from the policy"),
        )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if 0 < self.num_gpus < self.num_learners != 1:
            message = f"num_gpus is {self.num_gpus:g}, less than num_learners, which is {self.num_learners}"
            hint = f"write num_gpus: {self.num_learners}, or 0, or fewer learners; they cannot share a GPU"
            yield Conflict(("num_gpus", "num_learners"), message, hint)
        if self.use_gae and not self.use_critic:
            message = "use_critic is false, but use_gae needs a critic"
            yield Conflict(("use_critic", "use_gae"), message, "write use_gae: false, or leave use_critic out")
        if not self.use_gae and self.batch_mode == "truncate_episodes":
            message = f"use_gae is false, but {self.stated('batch_mode')}; returns need whole episodes"
            hint = "write batch_mode: complete_episodes, or leave use_gae out"
            yield Conflict(("use_gae", "batch_mode"), message, hint)
