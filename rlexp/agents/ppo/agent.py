"""PPO: its loss as pure functions of tensors, epochs of minibatch SGD over each train batch, and the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.actor_critic.agent import ActorCriticAgent
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.device import BatchStaging, CapturedWork, DeviceNumbers, Tensors, say_nothing
from rlexp.agents.torch.learner_process import ALONE, Shard
from rlexp.agents.torch.trained_network import EpochsLearner, TrainedNetwork, explained_variance, refuse_divergence
from rlexp.config.keys.ppo import PPOConfig
from rlexp.models.action_distributions import Actions
from rlexp.models.layered import differentiable
from rlexp.models.lstm import Sequences, sequences_of
from rlexp.models.memory import memory_columns
from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.networks import ActorCritic
from rlexp.models.torch_distributions import distribution_of, numbered_actions
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.optimizers.sync_samples_optimizer import TrainBatchLearner
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule, derive_seed


def surrogate_losses(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the policy losses, their derivatives by ``logp``, and the probability ratios, each ``[B]``.

    With ``r = exp(logp - old_logp)`` a loss is ``-min(r A, clip(r, 1 - clip, 1 + clip) A)``
    (Schulman et al. 2017, equation 7). Its derivative is ``-r A``, or 0 where the clipped term is the smaller one.
    """
    ratio = torch.exp(logp - old_logp)
    whole, clipped = ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages
    losses = -torch.min(whole, clipped)
    return losses, losses * (whole <= clipped), ratio


def value_losses(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the losses of the value function, and their derivatives by ``values``, both ``[B]``.

    A loss is the larger of two squared errors, without a factor of one half: the error of ``values``, and the error of
    ``values`` clipped to within ``clip`` of ``old_values``. RLlib had this form up to 1.8; the published results used
    it (Engstrom et al. 2020, section 3). If the clipped error is the larger one and ``clip`` limits it, the derivative
    is 0.
    """
    moved, error = values - old_values, values - targets
    near_moved = moved.clamp(-clip, clip)
    loss, near_loss = error.square(), (error + (near_moved - moved)).square()
    return torch.max(loss, near_loss), 2.0 * error * ((moved == near_moved) | (loss >= near_loss))


def adapted_kl_coeff(kl_coeff: float, kl: float, kl_target: float) -> float:
    """Return the next coefficient of the KL penalty (Schulman et al. 2017, section 4, with RLlib's factors)."""
    if kl > 2.0 * kl_target:
        return kl_coeff * 1.5
    if kl < 0.5 * kl_target:
        return kl_coeff * 0.5
    return kl_coeff


COLUMNS = (OBS, ACTIONS, LOGP, ADVANTAGES, VALUE_TARGETS, VF_PREDS, DIST_INPUTS)
NUM_MEASURED = 6
"""Stats that are measured of each minibatch."""
NUMBERS, COEFFICIENTS = "numbers", "coefficients"
"""Names of further tensors of a minibatch: the ``numbers`` of a TrainBatch, and Coefficients."""
SMALLEST_DEVIATION = 1e-4
"""Least divisor of advantages, as all may be equal."""


@dataclass(frozen=True)
class PPOLearnerConfig:
    """The settings of a PPO learner, apart from the network's shape and the actions."""

    lr: PiecewiseSchedule
    """Adam's learning rate as a function of sampled steps."""
    entropy_coeff: PiecewiseSchedule
    """Weight of the entropy bonus as a function of sampled steps."""
    adam_epsilon: float
    grad_norm_clipping: float | None
    """Global norm to which gradients are scaled down, or None."""
    num_sgd_iter: int
    """Epochs over a train batch."""
    sgd_minibatch_size: int
    clip_param: float
    vf_clip_param: float
    vf_loss_coeff: float
    """Weight of the value function's loss; 0 without a critic."""
    kl_coeff: float
    """Initial weight of the KL penalty."""
    kl_target: float

    def most_updates(self, num_rows: int) -> int:
        """Return the most SGD steps for a train batch of so many rows."""
        return self.num_sgd_iter * (num_rows // self.sgd_minibatch_size + 1)


@dataclass(frozen=True)
class LossTerms:
    """What the loss of a minibatch is made of; a CUDA graph has it as constants."""

    num_rows: int
    """Rows of the minibatch, over which the loss is a mean, in all learners."""
    has_kl: bool
    has_entropy: bool
    measures: bool
    """Whether the stats are computed."""


Coefficients = Sequence[float] | Tensor
"""The weights of the KL penalty and of the entropy bonus."""


@dataclass(frozen=True)
class TrainBatch:
    """The columns of a train batch, or of a minibatch of it, on the learner's device."""

    obs: Tensor
    """``[B, ...]``."""
    actions: Tensor
    """``[B, D]``, as ``numbered_actions`` returns them."""
    numbers: Tensor
    """``[B, 4 + K]``: LOGP, ADVANTAGES (normalised), VALUE_TARGETS, VF_PREDS and DIST_INPUTS. One tensor, so that
    taking a minibatch is three operations."""
    sequences: Sequences | None = None
    """The sequences that the rows are, for a network with a memory."""

    def part(self, indices: Tensor) -> TrainBatch:
        """Return the rows at ``indices [b]``, or the sequences of these numbers."""
        rows, part = (indices, None) if self.sequences is None else self.sequences.part(indices)
        obs, actions, numbers = (each.index_select(0, rows) for each in (self.obs, self.actions, self.numbers))
        return TrainBatch(obs, actions, numbers, part)

    def num_rows(self, indices: Tensor) -> int:
        """Return the number of rows of ``part``."""
        return len(indices) if self.sequences is None else int(self.sequences.lengths[indices].sum())


class PPOLearner(EpochsLearner[ActorCritic]):
    """Owns the network and Adam; used by one thread at a time."""

    def __init__(
        self,
        network: ActorCriticConfig,
        actions: Actions,
        config: PPOLearnerConfig,
        seed: int,
        device: str = "cpu",
        shard: Shard = ALONE,
        note: Callable[[str], None] = say_nothing,
    ) -> None:
        """Initialise; ``note`` gets notices for the user."""
        self._config = config
        self._actions = actions
        self._shard = shard
        place = torch.device(device)
        trained = TrainedNetwork(
            lambda: ActorCritic(network), seed, place, config.adam_epsilon, config.grad_norm_clipping
        )
        super().__init__(trained, config.num_sgd_iter, config.sgd_minibatch_size, seed)
        self._network = differentiable(trained.module)
        self._staging = BatchStaging((*COLUMNS, *memory_columns(network.memory)), place, num_slots=1)
        self._coefficients = DeviceNumbers(place)
        captured = CapturedWork(self._backward_of, [trained.module], place, note)
        self._captured = captured if captured.can_capture and network.memory is None else None
        """Used for minibatches of rows on a GPU; sequences differ in their shapes."""
        self._kl_coeff = config.kl_coeff

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Do all epochs over a train batch, which has COLUMNS.

        The stats are means over the last epoch, except ``vf_explained_var``, which uses the workers' values. Raises
        TrialError if the loss or its gradient is not finite, as learning cannot continue. Raises
        InterruptedLearningError if ``should_stop``, which is called before each SGD step, returns True.
        """
        rows = self._staged(batch)
        lr = self._config.lr.value(self._num_steps_sampled)
        entropy_coeff = self._config.entropy_coeff.value(self._num_steps_sampled)

        def update(indices: Tensor, measures: bool) -> Tensor | None:
            return self._update(rows, indices, lr, entropy_coeff, measures)

        lengths = None if rows.sequences is None else rows.sequences.lengths
        figures = self.train_epochs(batch.count, update, should_stop, lengths)
        stats = self._stats(figures, rows)
        stats |= {"cur_kl_coeff": self._kl_coeff, "cur_entropy_coeff": entropy_coeff, "lr": lr}
        self._kl_coeff = adapted_kl_coeff(self._kl_coeff, stats["kl"], self._config.kl_target)
        return LearnResult(stats)

    def state_dict(self) -> Mapping[str, Array]:
        return {**super().state_dict(), "kl_coeff": np.array([self._kl_coeff, self._config.kl_coeff])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        kl_coeff, first_kl_coeff = state["kl_coeff"].tolist()
        # A user or pbt may give another value than the checkpoint's; it is then adapted from there.
        self._kl_coeff = kl_coeff if first_kl_coeff == self._config.kl_coeff else self._config.kl_coeff

    def _staged(self, batch: SampleBatch) -> TrainBatch:
        """Return a batch on the device, with its advantages normalised to mean 0 and deviation 1."""
        columns = self._staging.load(batch)
        advantages = columns[ADVANTAGES]
        normalised = (advantages - advantages.mean()) / advantages.std(correction=0).clamp(min=SMALLEST_DEVIATION)
        numbers = [columns[LOGP], normalised, columns[VALUE_TARGETS], columns[VF_PREDS]]
        return TrainBatch(
            obs=columns[OBS],
            actions=numbered_actions(self._actions, columns[ACTIONS]),
            numbers=torch.cat([torch.stack(numbers, dim=1), columns[DIST_INPUTS]], dim=1),
            sequences=sequences_of(columns),
        )

    def _update(
        self, rows: TrainBatch, indices: Tensor, lr: float, entropy_coeff: float, measures: bool
    ) -> Tensor | None:
        """Do one SGD step; return the stats of this learner's part of the minibatch if it ``measures`` them."""
        own = rows.part(self._shard.part(indices))
        terms = LossTerms(rows.num_rows(indices), self._kl_coeff != 0, entropy_coeff != 0, measures)
        coefficients = self._coefficients.of(self._kl_coeff, entropy_coeff)
        if self._captured is not None and isinstance(coefficients, Tensor):
            tensors = {OBS: own.obs, ACTIONS: own.actions, NUMBERS: own.numbers, COEFFICIENTS: coefficients}
            figures = self._captured(tensors, terms)
        else:
            figures = self._backward(own, coefficients, terms)
        self._shard.add_up(self._adam.gradient)
        norm = self._adam.step(lr)
        return torch.stack([*figures, norm]) if measures else None

    def _backward_of(self, tensors: Tensors, terms: LossTerms) -> Sequence[Tensor]:
        """Do what ``_backward`` does for the ``tensors`` of a minibatch, by name."""
        rows = TrainBatch(tensors[OBS], tensors[ACTIONS], tensors[NUMBERS])
        return self._backward(rows, tensors[COEFFICIENTS], terms)

    def _backward(self, rows: TrainBatch, coefficients: Coefficients, terms: LossTerms) -> Sequence[Tensor]:
        """Replace the gradient by the gradient of the loss of ``rows``; return its stats if ``terms`` say so.

        The KL divergence and the entropy are computed only if they are part of the loss or measured. On a small
        minibatch, starting an operation costs more than computing it.
        """
        self._adam.zero_grad()
        config, measures, weight = self._config, terms.measures, 1.0 / terms.num_rows
        kl_coeff, entropy_coeff = coefficients
        if not len(rows.numbers):  # a minibatch may have fewer sequences than there are learners
            return [rows.numbers.new_zeros(())] * NUM_MEASURED if measures else []
        old_logp, advantages, targets, old_values = rows.numbers[:, :4].unbind(1)
        inputs, values = self._network.forward(rows.obs, rows.sequences)
        distribution = distribution_of(self._actions, inputs)
        logp = distribution.log_prob(rows.actions)
        policy_losses, of_logp, ratio = surrogate_losses(logp, old_logp, advantages, config.clip_param)
        of_inputs = (weight * of_logp).unsqueeze(1) * distribution.log_prob_gradient(rows.actions)
        old = distribution_of(self._actions, rows.numbers[:, 4:]) if terms.has_kl or measures else None
        if old is not None and terms.has_kl:
            of_inputs += (weight * kl_coeff) * distribution.kl_gradient(old)
        if terms.has_entropy:
            of_inputs -= (weight * entropy_coeff) * distribution.entropy_gradient()
        vf_losses = of_values = torch.zeros_like(values)
        if config.vf_loss_coeff:
            vf_losses, of_values = value_losses(values, old_values, targets, config.vf_clip_param)
        self._network.backward(of_inputs, (weight * config.vf_loss_coeff) * of_values)
        if old is None or not measures:
            return []
        kl, entropy = distribution.kl_from(old), distribution.entropy()
        is_clipped = (ratio - 1.0).abs() > config.clip_param
        losses = policy_losses + config.vf_loss_coeff * vf_losses + kl_coeff * kl - entropy_coeff * entropy
        measured = (losses, policy_losses, vf_losses, kl, entropy, is_clipped)
        return [weight * each.sum() for each in measured]

    def _stats(self, figures: Tensor, rows: TrainBatch) -> dict[str, float]:
        """Return the means of an epoch's ``figures [M, N]`` over all learners; read back from the device once."""
        sums = figures.mean(dim=0)
        grad_norm = sums[-1].clone()  # equal in all learners
        self._shard.add_up(sums)
        explained = explained_variance(rows.numbers[:, 2], rows.numbers[:, 3])
        numbers = torch.stack([*sums[:-1], grad_norm, explained, rows.numbers[:, 2].abs().mean()]).tolist()
        names = ("total_loss", "policy_loss", "vf_loss", "kl", "entropy", "clip_fraction", "grad_norm")
        stats = dict(zip((*names, "vf_explained_var", "mean_abs_value_target"), numbers, strict=True))
        hint = "lower lr, set grad_clip or clip_rewards"
        refuse_divergence(stats["total_loss"], stats["grad_norm"], self.num_updates, hint)
        return stats


TARGETS_FAR_ABOVE_CLIP = 10.0
"""Ratio of the mean value targets to ``vf_clip_param`` above which a notice is given."""


class PPOAgent(ActorCriticAgent[PPOConfig], SyncSamplesAgent[PPOConfig]):
    """PPO (Schulman et al. 2017) with several workers that sample at the same time."""

    _has_noticed_targets = False

    def make_learner(self) -> TrainBatchLearner:
        own, seed = learner_config(self.config), derive_seed(self.seed, "learner")
        make = partial(PPOLearner, self.policies.network, self.policies.actions, own, seed)
        if self.config.learner_processes is None:  # notices of other processes have no way to the user
            make = partial(make, note=self.add_event)
        return self.one_learner_or_several(make, own.most_updates)

    def stats(self) -> Figures:
        """Return no stats of its own. Add a notice if ``vf_clip_param`` is far below the value targets."""
        target = self.optimizer.learner_stats.get("mean_abs_value_target", 0.0)
        limit = self.config.vf_clip_param
        if self.config.use_critic and target > TARGETS_FAR_ABOVE_CLIP * limit and not self._has_noticed_targets:
            self._has_noticed_targets = True
            self.add_event(
                f"value targets are about {target:,.0f}, but vf_clip_param is {limit:g}: values change slowly;"
                " raise vf_clip_param or scale the rewards"
            )
        return {}


def learner_config(config: PPOConfig) -> PPOLearnerConfig:
    """Return the learner's config from the keys."""
    return PPOLearnerConfig(
        lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
        entropy_coeff=PiecewiseSchedule(config.entropy_coeff_schedule or ((0, config.entropy_coeff),)),
        adam_epsilon=config.adam_epsilon,
        grad_norm_clipping=config.grad_norm_clipping,
        num_sgd_iter=config.num_sgd_iter,
        sgd_minibatch_size=config.whole_minibatch,
        clip_param=config.clip_param,
        vf_clip_param=config.vf_clip_param,
        vf_loss_coeff=config.vf_loss_coeff if config.use_critic else 0.0,
        kl_coeff=config.kl_coeff,
        kl_target=config.kl_target,
    )
