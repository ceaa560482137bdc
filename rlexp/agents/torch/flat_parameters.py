"""All parameters of a network in one tensor, so that what happens to all of them is one operation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.sample_batch import Array


class FlatParameters:
    """Owns the memory of a network's parameters, which become views of it.

    An operation on a layer of usual size takes less time than to start it. Adam, the gradient's norm and
    the copies to the target network and to the workers would each start one or more per weight and per
    bias; here it is one for the whole network.
    """

    values: Tensor
    """All parameters ``[N]``."""

    def __init__(self, network: nn.Module) -> None:
        """Move the parameters of ``network`` here; each keeps its layout, such as channels last."""
        self._names, self._parameters = zip(*network.named_parameters(), strict=True)
        self.values = torch.cat([parameter.detach().flatten() for parameter in self._parameters])
        for parameter, view in zip(self._parameters, self.views(self.values), strict=True):
            parameter.data = view.copy_(parameter.detach())

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the part of ``flat [N]`` that belongs to each parameter, in the parameter's shape and layout."""
        views, start = [], 0
        for parameter in self._parameters:
            views.append(flat.as_strided(parameter.shape, parameter.stride(), start))
            start += parameter.numel()
        return views

    def make_gradient(self) -> Tensor:
        """Return the zeros ``[N]`` to which every ``backward`` from now on adds the gradients."""
        gradient = torch.zeros_like(self.values)
        for parameter, view in zip(self._parameters, self.views(gradient), strict=True):
            parameter.grad = view
        return gradient

    def arrays(self) -> dict[str, Array]:
        """Return a copy of every parameter by its name."""
        views = self.views(self.values.to("cpu", copy=True))
        return {name: np.ascontiguousarray(view.numpy()) for name, view in zip(self._names, views, strict=True)}
