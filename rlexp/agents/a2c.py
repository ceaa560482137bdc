"""A2C, A3C and PG: one step of Adam on the gradient of each train batch. IMPALA and APPO derive from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.actor_critic.agent import ActorCriticAgent
from rlexp.agents.async_samples_agent import AsyncSamplesAgent
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.device import BatchStaging
from rlexp.agents.torch.flat_adam import RMSPropConfig
from rlexp.agents.torch.learner_process import ALONE, Shard
from rlexp.agents.torch.trained_network import NetworkLearner, TrainedNetwork, explained_variance, refuse_divergence
from rlexp.config.keys.a2c import A2CConfig, A3CConfig, PGConfig, PolicyGradientKeys
from rlexp.models.action_distributions import Actions
from rlexp.models.layered import differentiable
from rlexp.models.lstm import sequences_of
from rlexp.models.memory import SEQUENCE_STARTS, memory_columns
from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.networks import ActorCritic
from rlexp.models.torch_distributions import Distribution, distribution_of, numbered_actions
from rlexp.optimizers.sync_samples_optimizer import TrainBatchLearner
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import ADVANTAGES, VALUE_TARGETS
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule, derive_seed

Columns = Mapping[str, Tensor]
"""The columns ``[B, ...]`` of a train batch, on the learner's device."""


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
    rmsprop: RMSPropConfig | None = None
    """RMSProp's settings; None: Adam moves the weights."""


@dataclass(frozen=True)
class ForwardPass:
    """The results of the network for the rows of a train batch."""

    distribution: Distribution
    taken: Tensor
    """The actions that were taken, as ``numbered_actions`` returns them."""
    logp: Tensor
    """The logarithms ``[B]`` of their probabilities now."""
    values: Tensor
    """``[B]``."""
    reference: Distribution | None = None
    """The distributions of the policy with which the learned one is compared."""
    reference_logp: Tensor | None = None
    """The logarithms ``[B]`` of the probabilities of ``taken`` in that policy."""


@dataclass(frozen=True)
class Credit:
    """What the rows of a train batch are worth."""

    advantages: Tensor
    """``[B]``."""
    targets: Tensor
    """What the values move towards ``[B]``."""
    counts: Tensor | None = None
    """1 for a row that is learned, else 0 ``[B]``; None: all are."""


def weighted(numbers: Tensor, weights: Tensor) -> Tensor:
    """Return ``numbers [B, ...]`` times ``weights [B]``; 0 if a weight is 0, as such a row may have any number."""
    weights = weights.reshape(-1, *[1] * (numbers.dim() - 1))
    return (weights * numbers).where(weights > 0, 0.0)


class PolicyGradientLearner(NetworkLearner[ActorCritic]):
    """A TrainBatchLearner; owns the network and Adam; used by one thread at a time."""

    def __init__(
        self,
        network: ActorCriticConfig,
        actions: Actions,
        config: PolicyGradientConfig,
        seed: int,
        device: str = "cpu",
        shard: Shard = ALONE,
    ) -> None:
        """Initialise; ``shard`` is the part of each train batch whose gradient is computed here."""
        self._config, self._actions, self._shard = config, actions, shard
        super().__init__(self.make_network(network, seed, torch.device(device)))
        self._network = differentiable(self._trained.module)
        columns = (*self.columns, *memory_columns(network.memory))
        self._staging = BatchStaging(columns, torch.device(device), num_slots=1)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a train batch needs, beside the columns of a memory."""
        return OBS, ACTIONS, ADVANTAGES, VALUE_TARGETS

    def make_network(self, network: ActorCriticConfig, seed: int, device: torch.device) -> TrainedNetwork[ActorCritic]:
        """Return the network with its Adam."""
        settings = self._config.adam_epsilon, self._config.grad_norm_clipping, self._config.rmsprop
        return TrainedNetwork(lambda: ActorCritic(network), seed, device, *settings)

    def passed(self, columns: Columns) -> ForwardPass:
        """Return the results of a forward pass, from which ``credit`` and losses are computed."""
        inputs, values = self._network.forward(columns[OBS], sequences_of(columns))
        taken = numbered_actions(self._actions, columns[ACTIONS])
        distribution = distribution_of(self._actions, inputs)
        return ForwardPass(distribution, taken, distribution.log_prob(taken), values)

    def credit(self, columns: Columns, passed: ForwardPass) -> Credit:
        """Return what the workers computed."""
        return Credit(columns[ADVANTAGES], columns[VALUE_TARGETS])

    def num_learned(self, batch: SampleBatch) -> int:
        """Return the number of rows of a train batch that are learned."""
        return batch.count

    def part_starts(self, batch: SampleBatch) -> Array:
        """Return the rows ``[S]``, in order, at which a learner's part of a train batch may begin; the first is 0."""
        return np.flatnonzero(batch[SEQUENCE_STARTS]) if SEQUENCE_STARTS in batch else np.arange(batch.count)

    def policy_losses(self, columns: Columns, passed: ForwardPass, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses ``-log pi(a|s) A`` ``[B]``, and their gradient by the inputs ``[B, K]``."""
        return -passed.logp * advantages, -advantages.unsqueeze(1) * passed.distribution.log_prob_gradient(passed.taken)

    def figures(self, columns: Columns, passed: ForwardPass, weights: Tensor) -> Mapping[str, Tensor]:
        """Return further figures by name: sums with ``weights [B]``, which add up to 1 in a train batch."""
        return {}

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Make one step on a train batch, which has ``columns``; it is too short to be interrupted by ``should_stop``.

        Raises TrialError if the loss or its gradient is not finite: nothing can be learned from there on.
        """
        part, is_spare = self._shard.part_of_rows(batch, self.part_starts)
        lr = self._config.lr.value(self._num_steps_sampled)
        entropy_coeff = self._config.entropy_coeff.value(self._num_steps_sampled)
        self._adam.zero_grad()
        figures = self._backward(self._staging.load(part), entropy_coeff, self.num_learned(batch), is_spare)
        self._shard.add_up(self._adam.gradient)
        sums = torch.stack(list(figures.values()))
        self._shard.add_up(sums)
        numbers = torch.cat([sums, self._adam.step(lr).unsqueeze(0)]).tolist()
        self.num_updates += 1
        stats = dict(zip((*figures, "grad_norm"), numbers, strict=True))
        hint = "lower lr, set grad_clip or clip_rewards"
        refuse_divergence(stats["total_loss"], stats["grad_norm"], self.num_updates, hint)
        return LearnResult(stats | {"cur_entropy_coeff": entropy_coeff, "lr": lr})

    def _backward(self, columns: Columns, entropy_coeff: float, num_learned: int, is_spare: bool) -> dict[str, Tensor]:
        """Add the gradient of the loss of rows ``[B]``, and return figures by name, which add up over all learners.

        ``num_learned`` rows of the train batch are learned in all, and none of these if they are spare.

        A row's loss is its policy's, plus ``c 1/2 (V(s) - R)^2 - e H`` (Mnih et al. 2016, algorithm S3, and section 4
        for the entropy H). Rows are added up, or averaged.
        """
        passed = self.passed(columns)
        values, distribution = passed.values, passed.distribution
        credit = self.credit(columns, passed)
        learned = slice(None) if credit.counts is None else credit.counts > 0
        counts = torch.ones_like(values) if credit.counts is None else credit.counts
        counts = torch.zeros_like(counts) if is_spare else counts
        shares = counts / num_learned
        weights = counts if self._config.sums_losses else shares
        losses, of_inputs = self.policy_losses(columns, passed, credit.advantages)
        if entropy_coeff:
            of_inputs -= entropy_coeff * distribution.entropy_gradient()
        errors = values - credit.targets
        of_inputs, of_values = weighted(of_inputs, weights), (weights * self._config.vf_loss_coeff) * errors
        self._network.backward(of_inputs, of_values)
        entropies = distribution.entropy()
        policy_loss, vf_loss = weighted(losses, weights).sum(), 0.5 * (weights * errors.square()).sum()
        bonus = entropy_coeff * (weights * entropies).sum()
        return {
            "total_loss": policy_loss + self._config.vf_loss_coeff * vf_loss - bonus,
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": (shares * entropies).sum(),
            "vf_explained_var": shares.sum() * explained_variance(credit.targets[learned], values[learned]),
            **self.figures(columns, passed, shares),
        }


PolicyGradientKeysT = TypeVar("PolicyGradientKeysT", bound=PolicyGradientKeys)


class PolicyGradientAgent(ActorCriticAgent[PolicyGradientKeysT]):
    """An agent that follows the gradient of its policy."""

    def make_learner(self) -> TrainBatchLearner:
        return self.one_learner_or_several(self.learner_maker(derive_seed(self.seed, "learner")), _one_update)

    def learner_maker(self, seed: int) -> Callable[[str, Shard], PolicyGradientLearner]:
        """Return what makes the learner on a device, for a part of each train batch."""
        network, actions = self.policies.network, self.policies.actions
        return partial(PolicyGradientLearner, network, actions, self.learner_config(), seed)

    def learner_config(self) -> PolicyGradientConfig:
        """Return the learner's settings."""
        config = self.config
        return PolicyGradientConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            entropy_coeff=PiecewiseSchedule(config.entropy_coeff_schedule or ((0, config.entropy_coeff),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            vf_loss_coeff=config.vf_loss_coeff if config.use_critic else 0.0,
            sums_losses=config.SUMS_LOSSES,
        )


class A2CAgent(PolicyGradientAgent[A2CConfig], SyncSamplesAgent[A2CConfig]):
    """A2C: advantage actor-critic with workers in step (Mnih et al. 2016, without the asynchrony)."""


class A3CAgent(PolicyGradientAgent[A3CConfig], AsyncSamplesAgent[A3CConfig]):
    """A3C (Mnih et al. 2016): the learner makes a step on each fragment as it arrives, and no worker waits.

    In the paper each worker computes the gradient of its own fragment, by the weights that it acted with. Here the
    learner computes it by its newest weights. The data is as old, and no ratio corrects for that, as in the paper.
    """

    @property
    def num_steps_of_batch(self) -> int:
        return 1


class PGAgent(PolicyGradientAgent[PGConfig], SyncSamplesAgent[PGConfig]):
    """PG: REINFORCE (Williams 1992), with the discounted return from each step to the end of its episode."""


def _one_update(num_rows: int) -> int:
    """Return the updates of a train batch of so many rows."""
    return 1
