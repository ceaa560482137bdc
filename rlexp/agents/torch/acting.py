"""How a torch network that acts gets its weights."""

from __future__ import annotations

import torch
from torch import nn

from rlexp.models.torsos import load_arrays
from rlexp.policy import LiveWeights, Weights


class ActingWeights:
    """Gives a network that acts its weights: copies of them, or a learner's own memory."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._live: LiveWeights | None = None

    def load(self, weights: Weights) -> None:
        """Let the network act with a copy of ``weights``, or in place with the weights of a learner in this thread."""
        if not isinstance(weights, LiveWeights):
            if self._live is not None:  # a copy into the learner's memory would change the learner
                self._share({name: array.copy() for name, array in self._live.items()})
                self._live = None
            load_arrays(self._network, weights)
        elif weights is not self._live:
            self._share(weights)
            self._live = weights

    def _share(self, weights: Weights) -> None:
        """Let the parameters read ``weights``, which have all their names, in place from now on."""
        for name, parameter in self._network.named_parameters():
            parameter.data = torch.from_numpy(weights[name])
