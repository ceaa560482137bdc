"""A network with its Adam, and one that a target network follows: what learners own and checkpoints keep of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from rlexp.agents.torch.device import use_precision
from rlexp.agents.torch.flat_adam import FlatAdam, FlatOptimizer, FlatParameters, FlatRMSProp, RMSPropConfig
from rlexp.agents.torch.process import keep_freed_memory
from rlexp.models.torsos import load_weights, tensors_of
from rlexp.policy import Weights
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
