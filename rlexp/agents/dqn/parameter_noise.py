"""Parameter noise: exploration with a perturbed copy of the Q-network, about as much of it as with ε."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.models.q_network import QNetwork
from rlexp.sample_batch import Array

ADAPTATION_FACTOR = 1.01
"""By what the deviation grows, or shrinks, at a time (Plappert et al. 2018, appendix C)."""
ADAPTATION_INTERVAL = 10
"""Acting steps behind each change of the deviation: it can halve within 700 steps, so that it keeps up with ε, and the
unperturbed values of so many steps cost one forward pass."""


class ParameterNoise:
    """Owns the copy of a worker's network that explores, and the deviation of the noise on its weights.

    Every weight carries Gaussian noise of one deviation (Plappert et al. 2018, section 3). One draw serves
    all envs of a worker. It lasts for an episode of the first of them, so that what is tried is tried
    consistently; weights that arrive meanwhile get the same noise. The deviation starts at ``stddev``
    and adapts until the copy acts about as differently from the network as ε-greedy acting would. ε's
    random actions are taken all the same, as in RLlib; the paper explores by the noise alone.

    The caller, who acts with ``network``, decides when to ``redraw``, ``perturb``, ``record`` and ``adapt``.
    """

    def __init__(self, unperturbed: QNetwork, stddev: float, seed: int) -> None:
        """Perturb a copy of ``unperturbed``, whose weights may change in place before a ``perturb``."""
        self.network = deepcopy(unperturbed).requires_grad_(False)
        self.stddev = stddev
        self._unperturbed = unperturbed
        self._noise = [torch.empty_like(weight) for weight in self.network.parameters()]
        self._generator = torch.Generator().manual_seed(seed)
        self._steps: list[tuple[Array, Tensor]] = []
        self.redraw()

    def redraw(self) -> None:
        """Perturb by fresh noise."""
        for noise in self._noise:
            noise.normal_(generator=self._generator)
        self.perturb()

    @torch.no_grad()
    def perturb(self) -> None:
        """Perturb the weights as they are now, by the noise of the last ``redraw``."""
        weights, perturbed = self._unperturbed.parameters(), self.network.parameters()
        for weight, noise, copy in zip(weights, self._noise, perturbed, strict=True):
            torch.add(weight, noise, alpha=self.stddev, out=copy)
        for buffer, own in zip(self._unperturbed.buffers(), self.network.buffers(), strict=True):
            own.copy_(buffer)

    def record(self, obs: Array, values: Tensor) -> None:
        """Remember a step that was acted on: observations ``[B, ...]`` and the copy's values ``[B, A]`` of them."""
        self._steps.append((obs.copy(), values))

    def wants_to_adapt(self) -> bool:
        """Return whether enough steps were recorded."""
        return len(self._steps) >= ADAPTATION_INTERVAL

    def recorded_obs(self) -> Array:
        """Return the observations ``[N, ...]`` recorded since the deviation changed."""
        return np.concatenate([obs for obs, _ in self._steps])

    def adapt(self, values: Tensor, epsilons: Array) -> None:
        """Change the deviation by one step, up or down, towards the divergence that ``epsilons [M]`` have on average.

        ``values [N, A]`` are the unperturbed network's of ``recorded_obs``.
        """
        distance = divergence(values, torch.cat([perturbed for _, perturbed in self._steps]))
        wanted = float(divergence_of_epsilon(epsilons, values.shape[1]).mean())
        self.stddev *= ADAPTATION_FACTOR if distance <= wanted else 1 / ADAPTATION_FACTOR
        self._steps.clear()
        self.perturb()

    def state(self) -> dict[str, Any]:
        """Return the noise, its deviation, the steps recorded, and what the next draws come of."""
        return {
            "stddev": self.stddev,
            "generator": self._generator.get_state().numpy(),
            "noise": [noise.numpy() for noise in self._noise],
            "obs": [obs for obs, _ in self._steps],
            "values": [values.numpy() for _, values in self._steps],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, with the weights as they are now."""
        self.stddev = state["stddev"]
        self._generator.set_state(torch.from_numpy(state["generator"]))
        for noise, saved in zip(self._noise, state["noise"], strict=True):
            noise.copy_(torch.from_numpy(saved))  # into its own layout, which the next draws follow
        self._steps = list(zip(state["obs"], map(torch.from_numpy, state["values"]), strict=True))
        self.perturb()


def divergence(values: Tensor, perturbed: Tensor) -> float:
    """Return KL(softmax(``values [N, A]``) || softmax(``perturbed [N, A]``)), the mean of the rows."""
    log_p, log_q = values.log_softmax(dim=1), perturbed.log_softmax(dim=1)
    return float((log_p.exp() * (log_p - log_q)).sum(dim=1).mean())


def divergence_of_epsilon(epsilons: Array, num_actions: int) -> Array:
    """Return -log(1 - ε + ε / |A|) for ``epsilons [M]``: how far ε-greedy is from greedy (appendix C.1)."""
    divergences: Array = -np.log(1 - epsilons + epsilons / num_actions)
    return divergences
