"""A2C, A3C and PG learn: one step of Adam on the gradient of a whole train batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.torch.device import BatchStaging
from rlexp.agents.torch.epochs import explained_variance, refuse_divergence
from rlexp.agents.torch.trained_network import TrainedNetwork
from rlexp.models.action_distributions import Actions
from rlexp.models.layered_actor_critic import differentiable
from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.networks import ActorCritic
from rlexp.models.torch_distributions import distribution_of, numbered_actions
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import ADVANTAGES, VALUE_TARGETS
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

COLUMNS = (OBS, ACTIONS, ADVANTAGES, VALUE_TARGETS)
FIGURES = ("total_loss", "policy_loss", "vf_loss", "entropy", "vf_explained_var", "grad_norm")


@dataclass(frozen=True)
class PolicyGradientConfig:
    """The settings of a PolicyGradientLearner, apart from the network's shape and the actions."""

    lr: PiecewiseSchedule
    """Adam's learning rate over sampled steps."""
    entropy_coeff: PiecewiseSchedule
    """Weight of the entropy bonus over sampled steps."""
    adam_epsilon: float
    grad_norm_clipping: float | None
    """Global norm that gradients are scaled down to, or None."""
    vf_loss_coeff: float
    """Weight of the value function's loss; 0 without a critic."""
    sums_losses: bool
    """Whether the loss is a sum over the rows of a train batch, or their mean."""
    device: str = "cpu"


class PolicyGradientLearner:
    """A TrainBatchLearner; owns the network and Adam; used by one thread at a time."""

    def __init__(self, network: ActorCriticConfig, actions: Actions, config: PolicyGradientConfig, seed: int) -> None:
        self._config, self._actions = config, actions
        device = torch.device(config.device)
        self._trained = TrainedNetwork(
            lambda: ActorCritic(network), seed, device, config.adam_epsilon, config.grad_norm_clipping
        )
        self._module, self._adam = self._trained.module, self._trained.adam
        self._network = differentiable(self._module)
        self._staging = BatchStaging(COLUMNS, device, num_slots=1)
        self._num_steps_sampled = 0
        self.num_updates = 0

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Make one step on a train batch, which has COLUMNS; it is too short to be interrupted by ``should_stop``.

        Raises TrialError if the loss or its gradient is not finite: nothing can be learned from there on.
        """
        columns = self._staging.load(batch)
        lr = self._config.lr.value(self._num_steps_sampled)
        entropy_coeff = self._config.entropy_coeff.value(self._num_steps_sampled)
        self._adam.zero_grad()
        figures = self._backward(columns, entropy_coeff)
        figures.append(self._adam.step(lr))
        self.num_updates += 1
        stats = dict(zip(FIGURES, torch.stack(figures).tolist(), strict=True))
        hint = "lower lr, set grad_clip or clip_rewards"
        refuse_divergence(stats["total_loss"], stats["grad_norm"], self.num_updates, hint)
        return LearnResult(stats | {"cur_entropy_coeff": entropy_coeff, "lr": lr})

    def stats(self) -> Mapping[str, float | None]:
        return self._trained.stats()

    def get_weights(self) -> Weights:
        return self._trained.weights()

    def state_dict(self) -> Mapping[str, Array]:
        state = self._trained.state_dict()
        return state | {"counters": np.array([self._num_steps_sampled, self.num_updates])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._trained.load_state_dict(state)
        self._num_steps_sampled, self.num_updates = state["counters"].tolist()

    def _backward(self, columns: Mapping[str, Tensor], entropy_coeff: float) -> list[Tensor]:
        """Add the gradient of the loss of rows ``[B]``, and return the figures but for the norm of the gradient.

        A row's loss is ``-log pi(a|s) A + c 1/2 (V(s) - R)^2 - e H`` (Mnih et al. 2016, algorithm S3, and section 4
        for the entropy H). Rows are added up, or averaged.
        """
        config, advantages, targets = self._config, columns[ADVANTAGES], columns[VALUE_TARGETS]
        weight = 1.0 if config.sums_losses else 1.0 / len(advantages)
        inputs, values = self._network.forward(columns[OBS])
        taken = numbered_actions(self._actions, columns[ACTIONS])
        distribution = distribution_of(self._actions, inputs)
        of_inputs = (-weight * advantages).unsqueeze(1) * distribution.log_prob_gradient(taken)
        if entropy_coeff:
            of_inputs -= (weight * entropy_coeff) * distribution.entropy_gradient()
        error = values.detach() - targets
        self._network.backward(of_inputs, (weight * config.vf_loss_coeff) * error)
        with torch.no_grad():
            policy_loss = -weight * (distribution.log_prob(taken) * advantages).sum()
            vf_loss = 0.5 * weight * error.square().sum()
            entropy = distribution.entropy()
            total = policy_loss + config.vf_loss_coeff * vf_loss - (weight * entropy_coeff) * entropy.sum()
            return [total, policy_loss, vf_loss, entropy.mean(), explained_variance(targets, values)]
