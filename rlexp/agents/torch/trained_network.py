"""A network with its Adam, and one that a target network follows: what learners own and checkpoints keep of them.

``Epochs`` are SGD over a train batch, in minibatches, for a learner that gets new rows each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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


Update = Callable[[Tensor, bool], list[Tensor]]
"""A function that does one SGD step on the rows at indices ``[b]``, and returns its stats if asked to measure them."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a learner before a train batch."""

    tensors: Sequence[Tensor]
    """Parameters, Adam's state, and the network's buffers."""
    order: Tensor
    """State of the generator that draws minibatches."""
    num_updates: int


class Epochs:
    """Draws the minibatches of each epoch, counts SGD steps, and undoes them if they are interrupted.

    Owned by one learner, which does the steps.
    """

    num_updates: int
    """SGD steps so far."""

    def __init__(self, number: int, minibatch_size: int, network: nn.Module, adam: FlatOptimizer, seed: int) -> None:
        """Take ``number`` epochs in minibatches of about ``minibatch_size`` rows; ``adam`` moves ``network``."""
        self._number, self._minibatch_size = number, minibatch_size
        self._network, self._adam = network, adam
        self._order = torch.Generator().manual_seed(seed)
        self.num_updates = 0

    def train(
        self, num_rows: int, update: Update, should_stop: ShouldStop, lengths: Tensor | None = None
    ) -> list[list[Tensor]]:
        """Call ``update`` for each minibatch of a train batch; return the stats of the last epoch.

        With the ``lengths [C]`` of sequences, a minibatch is whole sequences, and ``update`` gets their numbers.
        Raises InterruptedLearningError once ``should_stop``, which is called before each step, returns True. All state
        is then as before the train batch.
        """
        before = self._snapshot()
        figures: list[list[Tensor]] = []
        for epoch in range(self._number):
            is_last = epoch == self._number - 1
            for indices in self._minibatches(num_rows, lengths):
                if should_stop():
                    self._return_to(before)
                    raise InterruptedLearningError
                measured = update(indices, is_last)
                self.num_updates += 1
                if is_last:
                    figures.append(measured)
        return figures

    def order_state(self) -> Array:
        """Return the state of the minibatch generator, for a checkpoint."""
        state: Array = self._order.get_state().numpy().copy()
        return state

    def load(self, order_state: Array, num_updates: int) -> None:
        """Continue from what ``order_state`` returned, after ``num_updates`` steps."""
        self._order.set_state(torch.tensor(order_state))
        self.num_updates = num_updates

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
        """Return all tensors that steps change."""
        return [*self._adam.tensors(), *self._network.buffers()]

    def _snapshot(self) -> Snapshot:
        return Snapshot([tensor.clone() for tensor in self._changing()], self._order.get_state(), self.num_updates)

    def _return_to(self, before: Snapshot) -> None:
        for tensor, copy in zip(self._changing(), before.tensors, strict=True):
            tensor.copy_(copy)
        self._order.set_state(before.order)
        self.num_updates = before.num_updates


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
