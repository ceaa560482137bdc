"""Stage 5 of the data path: one SGD step on a batch, and the target network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from rlexp.agents.dqn.dense_loss import MOST_PRODUCTS, DenseGradient
from rlexp.agents.dqn.loss import AutogradGradient, BatchLoss
from rlexp.agents.torch.device import (
    LateNumbers,
    Precision,
    continue_generator,
    say_nothing,
    torso_draws,
    use_precision,
)
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.agents.torch.process import keep_freed_memory
from rlexp.errors import TrialError
from rlexp.models.dense_gradients import is_dense
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import load_weights, tensors_of
from rlexp.policy import LearnResult, LiveWeights, Weights
from rlexp.sample_batch import IMPORTANCE_WEIGHTS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

NUM_PENDING_ON_GPU = 2
"""Updates that begin before an earlier result is read, so that the GPU has work while its thread copies."""


@dataclass(frozen=True)
class DQNLearnerConfig:
    """The settings of a DQN learner, apart from the network's shape."""

    lr: PiecewiseSchedule
    """Adam's learning rate as a function of sampled steps."""
    adam_epsilon: float
    grad_norm_clipping: float | None
    """Global norm to which gradients are scaled down, or None."""
    double_q: bool
    target_network_update_freq: int
    """Steps between two updates of the target network."""
    target_counts_trained: bool
    """Whether these are trained steps (APEX) or sampled steps (DQN)."""
    device: str
    precision: Precision = "float32"
    tau: float = 1.0
    """Share of the way to the online network that the target network moves in an update."""
    steps_per_row: int = 1
    """Trained steps that a row of a batch counts as."""


class BatchGradient(Protocol):
    """Computes the gradient of a learner's loss."""

    def compute(self, batch: SampleBatch) -> BatchLoss:
        """Replace the gradient, which the learner's Adam reads, by the gradient of a batch."""


ReadFigures = Callable[[], Sequence[Array]]
"""A function that waits for loss, mean action value, mean TD error and gradient norm ``[4]``, and TD errors ``[B]``."""


class DQNLearner:
    """A PipelinedLearner; owns the online network, the target network and Adam; used by one thread at a time."""

    def __init__(
        self, network: QNetworkConfig, config: DQNLearnerConfig, seed: int, note: Callable[[str], None] = say_nothing
    ) -> None:
        """Initialise; ``note`` gets notices for the user."""
        self.config, self._note = config, note
        device = torch.device(config.device)
        use_precision(config.precision, device)
        if device.type == "cpu":
            keep_freed_memory()
        self._device = device
        self.max_pending_updates = 0 if device.type == "cpu" else NUM_PENDING_ON_GPU
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = QNetwork(network).to(device)
        self.target = QNetwork(network).to(device).requires_grad_(False)
        self.target.torso.eval()
        self._parameters, self._target_parameters = FlatParameters(self.network), FlatParameters(self.target)
        self._target_parameters.move_towards(self._parameters, 1)
        self.adam = FlatAdam(self._parameters, config.adam_epsilon, config.grad_norm_clipping)
        self._autograd = self.make_gradient()
        self._by_hand = self._make_dense_gradient(network)
        self._live_weights = self._parameters.live_arrays()
        self._noise = torch.Generator(device).manual_seed(seed)
        self._torso_draws = torso_draws([self.network], seed, device)
        self._num_steps_sampled = 0
        self._num_steps_trained = 0
        self._target_updated_at = 0
        self._importance_weights: Array = np.empty(0, np.float32)
        """Importance weights of the newest batch; after a resume, their mean."""
        self.num_updates = 0
        self.num_target_updates = 0
        self.num_threads: int | None = None
        """Threads from the next update on; may be set from another thread. None: the threads that its own thread has.
        """

    def make_gradient(self) -> BatchGradient:
        """Return what computes the gradient of a batch, unless it is computed by hand."""
        settings = self.config
        return AutogradGradient(
            self.network, self.target, self.adam, self._device, settings.precision, settings.double_q, self._note
        )

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Do one step of Adam; the batch has OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS and IMPORTANCE_WEIGHTS.

        Raises TrialError if the loss or its gradient is not finite, as learning cannot continue.
        """
        return self.submit(batch).result()

    def submit(self, batch: SampleBatch) -> DQNUpdate:
        """Begin the update of ``learn_on_batch``; on a CPU it is done when this returns."""
        if self.num_threads not in {None, torch.get_num_threads()}:
            torch.set_num_threads(self.num_threads)
        for network in (self.network, self.target):
            network.resample_noise(self._noise)
        lr = self.config.lr.value(self._num_steps_sampled)
        with self._torso_draws(self.num_updates):
            figures = self._step_by_hand(batch, lr) if self._is_by_hand(batch.count) else self._step(batch, lr)
        self.num_updates += 1
        self._importance_weights = batch[IMPORTANCE_WEIGHTS]
        self._num_steps_trained += batch.count * self.config.steps_per_row
        self._update_target_when_due()
        return DQNUpdate(self.num_updates, lr, figures)

    def stats(self) -> Mapping[str, float | None]:
        weight = self._mean_weight()
        return {
            "num_target_updates": self.num_target_updates,
            "mean_importance_weight": float(weight[0]) if len(weight) else None,
            "adam_step_share": self.adam.step_share(),
        }

    def get_weights(self) -> Weights:
        return self._parameters.arrays()

    def live_weights(self) -> LiveWeights | None:
        return self._live_weights

    def state_dict(self) -> Mapping[str, Array]:
        state = {f"network.{name}": array for name, array in self._parameters.arrays().items()}
        state |= {f"target.{name}": array for name, array in self._target_parameters.arrays().items()}
        state |= {f"adam.{name}": tensor.cpu().numpy().copy() for name, tensor in self.adam.state_dict().items()}
        state["noise_rng"] = self._noise.get_state().cpu().numpy()
        state["mean_importance_weight"] = self._mean_weight()
        counters = (self._num_steps_sampled, self._num_steps_trained, self._target_updated_at)
        return state | {"counters": np.array([*counters, self.num_updates, self.num_target_updates])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        load_weights(self.network, tensors_of(state, "network."))
        load_weights(self.target, tensors_of(state, "target."))
        self.adam.load_state_dict(tensors_of(state, "adam."))
        if not continue_generator(self._noise, state["noise_rng"]) and self.network.named_noisy_layers():
            other = "a GPU" if self._device.type == "cpu" else "a CPU"
            self._note(f"noisy layers draw other noise than without the stop: the checkpoint was written on {other}")
        self._importance_weights = state.get("mean_importance_weight", self._importance_weights)
        counters = state["counters"].tolist()
        self._num_steps_sampled, self._num_steps_trained, self._target_updated_at = counters[:3]
        self.num_updates, self.num_target_updates = counters[3:]

    def has_short_updates(self, num_rows: int) -> bool:
        """Return whether an update of ``num_rows`` is mostly Python calls, so that an own thread would not help."""
        return self._is_by_hand(num_rows)

    def _mean_weight(self) -> Array:
        """Return the mean importance weight of the newest batch ``[1]``, or nothing ``[0]`` before the first."""
        weights = self._importance_weights
        return weights.mean(keepdims=True) if len(weights) else weights

    def _make_dense_gradient(self, network: QNetworkConfig) -> DenseGradient | None:
        """Return the object that computes small gradients; None if only autograd can."""
        if self._device.type != "cpu" or self.config.precision != "float32" or not is_dense(network):
            return None
        online, target = (self.network, self._parameters), (self.target, self._target_parameters)
        return DenseGradient(network, online, target, self.adam, self.config.double_q)

    def _is_by_hand(self, num_rows: int) -> bool:
        """Return whether computing the gradient by hand is fastest for so many rows."""
        return self._by_hand is not None and num_rows * self._parameters.values.numel() <= MOST_PRODUCTS

    def _step(self, batch: SampleBatch, lr: float) -> ReadFigures:
        loss = self._autograd.compute(batch)
        return LateNumbers(torch.cat([loss.figures, self.adam.step(lr).unsqueeze(0)]), loss.td_errors).read

    def _step_by_hand(self, batch: SampleBatch, lr: float) -> ReadFigures:
        assert self._by_hand is not None
        loss = self._by_hand.compute(batch)
        norm = float(self.adam.step(lr))
        computed = np.array([loss.loss, loss.mean_q, loss.mean_td_error, norm]), loss.td_errors
        return lambda: computed

    def _update_target_when_due(self) -> None:
        now = self._num_steps_trained if self.config.target_counts_trained else self._num_steps_sampled
        if now - self._target_updated_at >= self.config.target_network_update_freq:
            self._target_parameters.move_towards(self._parameters, self.config.tau)
            self._target_updated_at = now
            self.num_target_updates += 1


class DQNUpdate:
    """A PendingUpdate of a DQNLearner: its stats and TD errors, on their way from the device."""

    def __init__(self, number: int, lr: float, read: ReadFigures) -> None:
        """Initialise with the results of update ``number``."""
        self._number = number
        self._lr = lr
        self._read = read

    def result(self) -> LearnResult:
        figures, td_errors = self._read()
        loss, mean_q, mean_td_error, grad_norm = figures.tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrialError(
                f"the loss is {loss:g} and its gradient {grad_norm:g} at update {self._number:,}",
                "training diverged: lower lr, set grad_norm_clipping or clip_rewards",
            )
        stats = {"loss": loss, "mean_q": mean_q, "mean_td_error": mean_td_error, "grad_norm": grad_norm, "lr": self._lr}
        return LearnResult(stats, td_errors)
