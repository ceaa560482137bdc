"""A noisy layer's weights in NumPy, and the gradient of what they are made of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlexp.sample_batch import Array


class NoisyWeights:
    """Weights ``w = mu + sigma * f(eps_out) f(eps_in)^T`` (Fortunato et al. 2018, equation 10) of one layer.

    Mu, sigma and noise are views of a network's own memory; ``weight`` and ``bias`` are as ``perturb`` left them.
    """

    weight: Array
    """``[fan_out, fan_in]``."""
    bias: Array
    """``[fan_out]``."""

    def __init__(self, layer: str, weights: Mapping[str, Array], noise_in: Array, noise_out: Array) -> None:
        """Take the parameters of ``layer`` by their names."""
        self._weights = weights[f"{layer}.weight_mu"], weights[f"{layer}.weight_sigma"]
        self._biases = weights[f"{layer}.bias_mu"], weights[f"{layer}.bias_sigma"]
        self._noise_in, self._noise_out = noise_in, noise_out
        self._noise = np.empty_like(self._weights[0])
        self.weight, self.bias = np.empty_like(self._weights[0]), np.empty_like(self._biases[0])

    def perturb(self) -> None:
        """Compute ``weight`` and ``bias`` with the noise as it is now."""
        np.multiply(self._noise_out[:, None], self._noise_in, out=self._noise)
        for (mu, sigma), noise, perturbed in (
            (self._weights, self._noise, self.weight),
            (self._biases, self._noise_out, self.bias),
        ):
            np.multiply(sigma, noise, out=perturbed)
            np.add(perturbed, mu, out=perturbed)

    def write_gradient_of_sigma(self, layer: str, gradients: Mapping[str, Array]) -> None:
        """Compute it from the gradient of mu, which is that of ``weight`` and ``bias``."""
        np.multiply(gradients[f"{layer}.weight_mu"], self._noise, out=gradients[f"{layer}.weight_sigma"])
        np.multiply(gradients[f"{layer}.bias_mu"], self._noise_out, out=gradients[f"{layer}.bias_sigma"])
