"""A network with its Adam, one that a target network follows, and what the learners that own such a network share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.agents.torch.device import use_precision
from rlexp.agents.torch.flat_adam import FlatAdam, FlatOptimizer, FlatParameters, FlatRMSProp, RMSPropConfig
from rlexp.agents.torch.process import keep_freed_memory
from rlexp.errors import TrialError
from rlexp.models.torsos import load_weights, tensors_of
from rlexp.policy import InterruptedLearningError, Weights
from rlexp.rollout.evaluation import ShouldStop
from rlexp.sample_batch import Array

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class TrainedNetwork(Generic[ModuleT]):
    """Owns a network and its Adam; used by the thread of the learner that owns it."""

    def __init__(
        self,
        make: Callable[[], ModuleT],
        seed: int,
        device: torch.device,
        adam_epsilon: float,
        grad_norm_clipping: float | None,
        rmsprop: RMSPropConfig | None = None,
    ) -> None:
        """Make the network on ``device``, with first weights that are drawn from ``seed``; Adam without ``rmsprop``."""
        use_precision("float32", device)
        if device.type == "cpu":
            keep_freed_memory()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = make().to(device)
        self.parameters = FlatParameters(self.module)
        self.adam: FlatOptimizer = (
            FlatAdam(self.parameters, adam_epsilon, grad_norm_clipping)
            if rmsprop is None
            else FlatRMSProp(self.parameters, rmsprop, grad_norm_clipping)
        )

    def stats(self) -> Mapping[str, float | None]:
        return {"adam_step_share": self.adam.step_share()}

    def weights(self) -> Weights:
        """Return a copy of the weights."""
        return self.parameters.arrays()

    def state_dict(self) -> dict[str, Array]:
        state = {f"network.{name}": array for name, array in self.parameters.arrays().items()}
        return state | {f"adam.{name}": tensor.cpu().numpy().copy() for name, tensor in self.adam.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        load_weights(self.module, tensors_of(state, "network."))
        self.adam.load_state_dict(tensors_of(state, "adam."))


class FollowedNetwork(TrainedNetwork[ModuleT]):
    """Owns a network, its Adam, and the target network that follows it."""

    def __init__(self, make: Callable[[], ModuleT], *settings: Any) -> None:
        """Make both networks; ``settings`` are the other arguments of a TrainedNetwork."""
        super().__init__(make, *settings)
        self.target = deepcopy(self.module).requires_grad_(False).eval()
        self._target_parameters = FlatParameters(self.target)

    def move_target(self, tau: float) -> None:
        """Move the target network the share ``tau`` of the way to the network."""
        self._target_parameters.move_towards(self.parameters, tau)

    def state_dict(self) -> dict[str, Array]:
        target = {f"target.{name}": array for name, array in self._target_parameters.arrays().items()}
        return super().state_dict() | target

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        load_weights(self.target, tensors_of(state, "target."))


class NetworkLearner(Generic[ModuleT]):
    """What learners of one trained network share; used by one thread at a time."""

    def __init__(self, trained: TrainedNetwork[ModuleT]) -> None:
        self._trained, self._adam = trained, trained.adam
        self._num_steps_sampled = 0
        self.num_updates = 0
        """SGD steps so far."""

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def stats(self) -> Mapping[str, float | None]:
        return self._trained.stats()

    def get_weights(self) -> Weights:
        return self._trained.weights()

    def state_dict(self) -> Mapping[str, Array]:
        return self._trained.state_dict() | {"counters": np.array([self._num_steps_sampled, self.num_updates])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._trained.load_state_dict(state)
        self._num_steps_sampled, self.num_updates = state["counters"].tolist()


Update = Callable[[Tensor, bool], Tensor | None]
"""A function that does one SGD step on the rows at indices ``[b]``, and returns its stats ``[N]`` if it measures them.
"""


class EpochsLearner(NetworkLearner[ModuleT]):
    """A NetworkLearner that does epochs of SGD over a train batch, in minibatches, and undoes interrupted ones."""

    def __init__(self, trained: TrainedNetwork[ModuleT], num_epochs: int, minibatch_size: int, seed: int) -> None:
        """Take ``num_epochs`` epochs in minibatches of about ``minibatch_size`` rows, in an order from ``seed``."""
        super().__init__(trained)
        self._num_epochs, self._minibatch_size = num_epochs, minibatch_size
        self._order = torch.Generator().manual_seed(seed)

    def state_dict(self) -> Mapping[str, Array]:
        state, order = dict(super().state_dict()), self._order.get_state().numpy().copy()
        counters = state.pop("counters")
        return state | {"minibatch_rng": order, "counters": counters}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self._order.set_state(torch.tensor(state["minibatch_rng"]))

    def train_epochs(
        self, num_rows: int, update: Update, should_stop: ShouldStop, lengths: Tensor | None = None
    ) -> Tensor:
        """Call ``update`` for each minibatch of a train batch; return the stats of the last epoch's M: ``[M, N]``.

        With the ``lengths [C]`` of sequences, a minibatch is whole sequences, and ``update`` gets their numbers.
        Raises InterruptedLearningError once ``should_stop``, which is called before each step, returns True. All state
        is then as before the train batch.
        """
        before = [tensor.clone() for tensor in self._changing()], self._order.get_state(), self.num_updates
        figures: list[Tensor] = []
        for epoch in range(self._num_epochs):
            is_last = epoch == self._num_epochs - 1
            for indices in self._minibatches(num_rows, lengths):
                if should_stop():
                    tensors, order, self.num_updates = before
                    for tensor, copy in zip(self._changing(), tensors, strict=True):
                        tensor.copy_(copy)
                    self._order.set_state(order)
                    raise InterruptedLearningError
                measured = update(indices, is_last)
                self.num_updates += 1
                if measured is not None:
                    figures.append(measured)
        return torch.stack(figures)

    def _minibatches(self, num_rows: int, lengths: Tensor | None) -> Iterator[Tensor]:
        """Yield the indices of nearly equal parts of a batch; together they are one permutation of it."""
        num_parts = max(round(num_rows / self._minibatch_size), 1)
        if lengths is not None:
            order = torch.randperm(len(lengths), generator=self._order)
            ends = lengths[order].cumsum(0)
            # The middle of a sequence decides its part, so that parts differ by less than the longest sequence.
            part_of = (ends - lengths[order] / 2) * num_parts // num_rows
            _, sizes = torch.unique_consecutive(part_of, return_counts=True)
            yield from torch.split(order, sizes.tolist())
            return
        order = torch.randperm(num_rows, generator=self._order).to(self._adam.gradient.device)
        yield from order.tensor_split(num_parts)

    def _changing(self) -> list[Tensor]:
        """Return all tensors that steps change: parameters, Adam's state, and the network's buffers."""
        return [*self._adam.tensors(), *self._trained.module.buffers()]


def refuse_divergence(loss: float, grad_norm: float, num_updates: int, hint: str) -> None:
    """Raise TrialError if the loss or its gradient is not finite, as learning cannot continue."""
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise TrialError(
            f"the loss is {loss:g} and its gradient {grad_norm:g} at update {num_updates:,}",
            f"training diverged: {hint}",
        )


def explained_variance(targets: Tensor, values: Tensor) -> Tensor:
    """Return the share of the variance of ``targets [B]`` that ``values [B]`` explain: 1 is all, at least -1."""
    unexplained = (targets - values).var(correction=0) / targets.var(correction=0).clamp(min=1e-12)
    return (1.0 - unexplained).clamp(min=-1.0)
