"""Adam or RMSProp for all parameters of a network at once, with clipping of the gradient's norm.

It flushes subnormal numbers (in float32, below 1.2e-38) to 0, as processors compute with them far more slowly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam as torch_adam

from rlexp.models.torsos import named_weights
from rlexp.policy import LiveWeights
from rlexp.sample_batch import Array

BETA1, BETA2 = 0.9, 0.999
"""Decay of the means of the gradient and of its square per step (Kingma and Ba 2015, algorithm 1)."""


FUSED_ADAM: Final[Callable[..., Any] | None] = getattr(torch, "_fused_adam_", None)
"""The function that torch.optim.Adam also calls, but Adam's way there takes a sixth of a small network's update.

None if torch has removed this private function; ``rlexp doctor`` reports that.
"""


class FlatParameters:
    """Owns the memory of a network's parameters, which become views of it.

    On a layer of usual size, starting an operation takes longer than computing it. Adam, the gradient's norm, and the
    copies to the target network and to the workers would each start at least one operation per weight and bias. Here
    each starts one for the whole network.
    """

    values: Tensor
    """All parameters ``[N]``."""
    names: tuple[str, ...]
    """Names of the parameters, in their order."""

    def __init__(self, network: nn.Module) -> None:
        """Move the parameters of ``network`` here; each keeps its layout, such as channels last."""
        self.names, self._parameters = zip(*network.named_parameters(), strict=True)
        self._network = network
        self._has_buffers = bool(self._buffers())
        self.values = torch.cat([parameter.detach().flatten() for parameter in self._parameters])
        for parameter, view in zip(self._parameters, self.views(self.values), strict=True):
            parameter.data = view.copy_(parameter.detach())

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the part of ``flat [N]`` for each parameter, in the parameter's shape and layout."""
        views, start = [], 0
        for parameter in self._parameters:
            views.append(flat.as_strided(parameter.shape, parameter.stride(), start))
            start += parameter.numel()
        return views

    def arrays_of(self, flat: Tensor) -> dict[str, Array]:
        """Return the ``views`` of ``flat [N]``, which NumPy must be able to read, by parameter name."""
        views = self.views(flat.detach())
        return {name: view.numpy() for name, view in zip(self.names, views, strict=True)}

    def make_gradient(self) -> Tensor:
        """Return zeros ``[N]`` to which every later ``backward`` adds the gradients."""
        gradient = torch.zeros_like(self.values)
        for parameter, view in zip(self._parameters, self.views(gradient), strict=True):
            parameter.grad = view
        return gradient

    def arrays(self) -> dict[str, Array]:
        """Return a copy of every parameter and of ``named_weights``, by name, after all updates that have begun.

        ``named_weights`` are the buffers of the user's own torsos.
        """
        views = self.views(_host_copy(self.values))
        arrays = {name: np.ascontiguousarray(view.numpy()) for name, view in zip(self.names, views, strict=True)}
        if self._has_buffers:
            arrays |= {name: buffer.cpu().numpy().copy() for name, buffer in self._buffers().items()}
        return arrays

    def live_arrays(self) -> LiveWeights | None:
        """Return every parameter by name, in this memory; None if NumPy cannot read all of ``arrays`` there."""
        if self.values.device.type != "cpu" or self._has_buffers:
            return None
        return LiveWeights(self.arrays_of(self.values))

    def move_towards(self, other: FlatParameters, tau: float) -> None:
        """Move the share ``tau`` of the way to the weights of a network of the same shape (Polyak averaging).

        1 copies them. Running means, and other weights that Adam does not train, are always copied.
        """
        if tau == 1:
            self.values.copy_(other.values)
        else:
            self.values.lerp_(other.values, tau)
        if self._has_buffers:
            theirs = other._buffers()
            for name, buffer in self._buffers().items():
                buffer.copy_(theirs[name])

    def _buffers(self) -> dict[str, Tensor]:
        """Return the weights that are not parameters: Adam does not change them, but forward passes may."""
        weights = named_weights(self._network).items()
        return {name: weight.detach() for name, weight in weights if not isinstance(weight, nn.Parameter)}


class FlatAdam:
    """Owns a network's gradient and Adam's means; a learner calls it before and after ``backward``."""

    gradient: Tensor
    """The gradients of all parameters ``[N]``; may be changed between ``backward`` and ``step``."""

    def __init__(self, parameters: FlatParameters, epsilon: float, max_norm: float | None) -> None:
        """Scale gradients with a norm above ``max_norm`` down to it; None: never."""
        self._parameters = parameters
        self._epsilon = epsilon
        self._max_norm = max_norm
        self.gradient = parameters.make_gradient()
        self._exp_avg, self._exp_avg_sq = (torch.zeros_like(self.gradient) for _ in range(2))
        self._num_steps = self.gradient.new_zeros(())
        # The gradient of an inactive unit is 0, and its mean decays until it is subnormal for ever. With two layers of
        # 256 on CartPole, half of the means are, and a step takes four times as long.
        self._subnormals = SubnormalsAsZero() if self.gradient.device.type == "cpu" else None

    def zero_grad(self) -> None:
        """Set the gradient to 0, since ``backward`` adds to it."""
        self.gradient.zero_()

    def step(self, lr: float | Tensor) -> Tensor:
        """Move the parameters along the gradient that ``backward`` computed; return its norm before scaling.

        A CUDA graph has ``lr`` as a tensor ``[]``, else it could not change.
        """
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        self._num_steps += 1
        scale = None if self._max_norm is None else (norm + 1e-6) / self._max_norm
        if self._subnormals is None:
            self._move(lr, None if scale is None else scale.clamp(min=1.0))
            return norm
        with self._subnormals:
            # Dividing by 1 changes nothing, and takes a third of a step.
            self._move(lr, None if scale is None or scale.item() <= 1.0 else scale)
        return norm

    def _move(self, lr: float | Tensor, scale: Tensor | None) -> None:
        """Do one step with the gradient divided by ``scale []``."""
        call = functools.partial(
            torch_adam if FUSED_ADAM is None else FUSED_ADAM,
            [self._parameters.values],
            [self.gradient],
            [self._exp_avg],
            [self._exp_avg_sq],
            [],
            [self._num_steps],
            lr=lr,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
        )
        if FUSED_ADAM is not None:
            call()
        else:
            self._num_steps -= 1  # torch_adam counts the step
            call(fused=True)

    def step_share(self) -> float | None:
        """Return the size of a step relative to a step with an epsilon of 0; None before the first step.

        It is the mean over the parameters of ``|m| / (sqrt(v) + epsilon)``, divided by the mean of ``|m| / sqrt(v)``,
        with both moments corrected (Kingma and Ba 2015, algorithm 1).
        """
        num_steps = int(self._num_steps)
        root = (self._exp_avg_sq / (1.0 - BETA2 ** max(num_steps, 1))).sqrt_()
        moved = root > 0
        mean, root = self._exp_avg[moved].abs(), root[moved]
        whole = (mean / root).sum()
        return float((mean / (root + self._epsilon)).sum() / whole) if whole > 0 else None

    def tensors(self) -> list[Tensor]:
        """Return all tensors that a step changes, with the parameters."""
        return [self._parameters.values, self._exp_avg, self._exp_avg_sq, self._num_steps]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state under the names of an Adam of the single parameters: ``{index}.{name}``."""
        exp_avgs, exp_avg_sqs = self._parameters.views(self._exp_avg), self._parameters.views(self._exp_avg_sq)
        state: dict[str, Tensor] = {}
        for index, (exp_avg, exp_avg_sq) in enumerate(zip(exp_avgs, exp_avg_sqs, strict=True)):
            state[f"{index}.step"] = self._num_steps
            state[f"{index}.exp_avg"] = exp_avg
            state[f"{index}.exp_avg_sq"] = exp_avg_sq
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what ``state_dict`` returned.

        An empty state starts anew, as torch has one before its first step.
        """
        fresh = {name: torch.zeros_like(tensor) for name, tensor in self.state_dict().items()}
        for name, tensor in self.state_dict().items():
            tensor.copy_((state or fresh)[name])


@dataclass(frozen=True)
class RMSPropConfig:
    """The settings of RMSProp (Hinton's lecture 6e), as torch has it."""

    decay: float
    """Decay of the mean of the squared gradient per step."""
    momentum: float
    epsilon: float
    """Added to the root of that mean."""


class FlatRMSProp:
    """RMSProp instead of FlatAdam, with the same calls."""

    gradient: Tensor
    """The gradients of all parameters ``[N]``; may be changed between ``backward`` and ``step``."""

    def __init__(self, parameters: FlatParameters, config: RMSPropConfig, max_norm: float | None) -> None:
        """Scale gradients with a norm above ``max_norm`` down to it; None: never."""
        self._parameters = parameters
        self._max_norm = max_norm
        self.gradient = parameters.make_gradient()
        parameters.values.grad = self.gradient
        self._torch_rmsprop = torch.optim.RMSprop(
            [parameters.values], alpha=config.decay, eps=config.epsilon, momentum=config.momentum
        )
        names = ("square_avg", "momentum_buffer") if config.momentum else ("square_avg",)
        self._state = {name: torch.zeros_like(self.gradient) for name in names}
        self._torch_rmsprop.state[parameters.values] = {**self._state, "step": torch.zeros(())}

    def zero_grad(self) -> None:
        """Set the gradient to 0, since ``backward`` adds to it."""
        self.gradient.zero_()

    def step(self, lr: float | Tensor) -> Tensor:
        """Move the parameters along the gradient that ``backward`` computed; return its norm before scaling."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self._max_norm is not None:
            self.gradient.div_(((norm + 1e-6) / self._max_norm).clamp(min=1.0))
        self._torch_rmsprop.param_groups[0]["lr"] = float(lr)
        self._torch_rmsprop.step()
        return norm

    def step_share(self) -> None:
        """Return None: this is Adam's figure."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors that a step changes, with the parameters."""
        return [self._parameters.values, *self._state.values()]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the means ``[N]`` by torch's names."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what ``state_dict`` returned; what it lacks starts anew."""
        for name, tensor in self._state.items():
            tensor.copy_(state[name] if name in state else torch.zeros_like(tensor))


FlatOptimizer = FlatAdam | FlatRMSProp


def _host_copy(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU; from a GPU into pinned memory, in its own stream, with one wait."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
    stream.synchronize()
    return copy


SMALLEST: Final = 5e-324
"""The smallest positive Python float, which is subnormal."""


class SubnormalsAsZero:
    """Within this context, the thread flushes subnormal numbers to 0; used by one thread at a time.

    Threads of torch's own pool are not affected. If the processor cannot do it, nothing changes.
    """

    def __enter__(self) -> None:
        self._was_on = are_zero()
        torch.set_flush_denormal(True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._was_on:  # the same thread may step envs, whose numbers must not change
            torch.set_flush_denormal(False)


def are_zero(number: float = SMALLEST) -> bool:
    """Return whether this thread treats the subnormal ``number`` as 0."""
    return number * 1.0 == 0.0
