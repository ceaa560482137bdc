"""Fully connected layers with gradients by hand, and a Q-network of them: autograd is mostly overhead for small ones.

``DenseLayers`` goes forwards and backwards through layers of either library. Layers of a Q-network compute in NumPy, in
the memory of the torch network; layers of an actor-critic (``layered.py``) in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlexp.models.dense import ACTIVATIONS, add_value, centered_bytes
from rlexp.models.network_config import QNetworkConfig, has_numpy_form
from rlexp.sample_batch import Array

Numbers = TypeVar("Numbers")
"""Arrays or tensors."""


class DifferentiableLayer(Protocol[Numbers]):
    """A linear layer and its activation, with the place of its parameters' gradient."""

    def forward(self, x: Numbers) -> Numbers:
        """Return the output ``[B, fan_out]`` of ``x [B, fan_in]``, both float32, in its own memory."""

    def backward(self, x: Numbers, output: Numbers, gradient: Numbers, with_input: bool) -> Numbers:
        """Store the gradient of the parameters; return the gradient of ``x`` if ``with_input``, else anything.

        ``gradient [B, fan_out]`` belongs to ``output``, which ``forward`` returned for ``x``; it may be overwritten.
        """


class DenseLayers(Generic[Numbers]):
    """Layers one after another, in the memory of a network that changes them; owned by one thread."""

    def __init__(self, layers: Iterable[DifferentiableLayer[Numbers]]) -> None:
        self._layers = tuple(layers)

    def forward(self, x: Numbers) -> list[Numbers]:
        """Return ``x [B, N]`` and the output of each layer, float32; the last one is the result."""
        outputs = [x]
        for layer in self._layers:
            x = layer.forward(x)
            outputs.append(x)
        return outputs

    def backward(self, outputs: Sequence[Numbers], gradient: Numbers, with_input: bool) -> Numbers:
        """Store the layers' gradient; return the input's gradient ``[B, N]`` if ``with_input``, else anything.

        ``outputs`` come from :meth:`forward`; ``gradient`` belongs to the last one and may be overwritten.
        """
        for index in range(len(self._layers) - 1, -1, -1):
            needs_input = with_input or index > 0
            gradient = self._layers[index].backward(outputs[index], outputs[index + 1], gradient, needs_input)
        return gradient


Slope = Callable[[Array, Array], None]
"""Multiplies a gradient ``[B, N]`` in place by an activation's derivative, given its output ``[B, N]``."""


class ArrayLayer:
    """A DifferentiableLayer in NumPy on views of torch's parameters; it replaces their gradient."""

    def __init__(
        self, weight: Array, bias: Array, weight_gradient: Array, bias_gradient: Array, activation: str
    ) -> None:
        """Initialise; ``weight`` is ``[fan_out, fan_in]``, ``bias [fan_out]``, ``activation`` a name in SLOPES."""
        self._weight, self._weight_gradient = weight, weight_gradient
        self._bias, self._bias_gradient = bias, bias_gradient
        self._activation, self._slope = ACTIVATIONS[activation], SLOPES[activation]

    def forward(self, x: Array) -> Array:
        outputs = self._weighted(x)
        outputs += self._bias
        return self._activation(outputs)

    def backward(self, x: Array, output: Array, gradient: Array, with_input: bool) -> Array:
        self._slope(gradient, output)
        self._write_weight_gradient(x, gradient)
        np.add.reduce(gradient, axis=0, out=self._bias_gradient)
        return self._input_gradient(gradient) if with_input else gradient

    def _weighted(self, x: Array) -> Array:
        """Return ``x @ weight.T [B, fan_out]``, in its own memory."""
        outputs: Array = x @ self._weight.T
        return outputs

    def _write_weight_gradient(self, x: Array, gradient: Array) -> None:
        """Write ``gradient.T @ x`` to the gradient of the weights."""
        np.matmul(gradient.T, x, out=self._weight_gradient)

    def _input_gradient(self, gradient: Array) -> Array:
        """Return ``gradient @ weight [B, fan_in]``, in its own memory."""
        product: Array = gradient @ self._weight
        return product


MIN_WEIGHTS_FOR_TORCH: Final = 128 * 128
"""Least weights of a layer for products in torch: on one thread, 64 rows by 256 x 256 take 235 µs both ways, in NumPy
280 µs. With fewer weights, calling torch costs more than it saves."""


class LargeArrayLayer(ArrayLayer):
    """An ArrayLayer whose products torch computes."""

    def __init__(
        self, weight: Array, bias: Array, weight_gradient: Array, bias_gradient: Array, activation: str
    ) -> None:
        super().__init__(weight, bias, weight_gradient, bias_gradient, activation)
        self._tensor, self._tensor_gradient = torch.from_numpy(weight), torch.from_numpy(weight_gradient)
        self._transposed = self._tensor.T

    def _weighted(self, x: Array) -> Array:
        outputs: Array = torch.mm(_tensor_of(x), self._transposed).numpy()
        return outputs

    def _write_weight_gradient(self, x: Array, gradient: Array) -> None:
        torch.mm(_tensor_of(gradient).T, _tensor_of(x), out=self._tensor_gradient)

    def _input_gradient(self, gradient: Array) -> Array:
        product: Array = torch.mm(_tensor_of(gradient), self._tensor).numpy()
        return product


def _tensor_of(array: Array) -> Tensor:
    """Return a view; a copy of a read-only array, such as a batch through Ray, for which torch would warn."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _relu(gradient: Array, output: Array) -> None:
    gradient *= output > 0


def _tanh(gradient: Array, output: Array) -> None:
    gradient *= 1 - output * output


def _elu(gradient: Array, output: Array) -> None:
    gradient *= np.minimum(output, 0) + 1


def _linear(gradient: Array, output: Array) -> None:
    return None


SLOPES: Final[Mapping[str, Slope]] = {"relu": _relu, "tanh": _tanh, "elu": _elu, "linear": _linear}
"""Activations whose derivative follows from their output, by name."""


class NoisyWeights:
    """Weights ``w = mu + sigma * f(eps_out) f(eps_in)^T`` (Fortunato et al. 2018, equation 10) of one layer.

    Mu, sigma and noise are views of a network's own memory; ``perturb`` computes ``weight`` and ``bias``.
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
        """Compute ``weight`` and ``bias`` with the present noise."""
        np.multiply(self._noise_out[:, None], self._noise_in, out=self._noise)
        for (mu, sigma), noise, perturbed in (
            (self._weights, self._noise, self.weight),
            (self._biases, self._noise_out, self.bias),
        ):
            np.multiply(sigma, noise, out=perturbed)
            np.add(perturbed, mu, out=perturbed)

    def write_gradient_of_sigma(self, layer: str, gradients: Mapping[str, Array]) -> None:
        """Compute it from the gradient of mu, which is the gradient of ``weight`` and ``bias``."""
        np.multiply(gradients[f"{layer}.weight_mu"], self._noise, out=gradients[f"{layer}.weight_sigma"])
        np.multiply(gradients[f"{layer}.bias_mu"], self._noise_out, out=gradients[f"{layer}.bias_sigma"])


Noise = Mapping[str, tuple[Array, Array]]
"""The noise of input and output of each noisy layer, by the layer's name."""


def is_dense(config: QNetworkConfig) -> bool:
    """Return whether a network has fully connected layers only, not normalised, whose slopes are known."""
    if config.torso.layer_norm or config.memory is not None:
        return False
    return has_numpy_form(config) and SLOPES.keys() >= {*config.torso.activations, *config.head.activations}


@dataclass(frozen=True, eq=False)
class Passed:
    """The results of a forward pass that the backward pass needs."""

    torso: list[Array]
    advantage: list[Array]
    value: list[Array] | None
    outputs: Array
    """Values of actions, or logits of their atoms, ``[B, A, K]``."""

    def first(self, rows: int) -> Passed:
        """Return the results for the first ``rows``."""
        value = None if self.value is None else [each[:rows] for each in self.value]
        torso, advantage = [each[:rows] for each in self.torso], [each[:rows] for each in self.advantage]
        return Passed(torso, advantage, value, self.outputs[:rows])


class DenseNetwork:
    """The layers of a ``QNetwork``, in its own memory."""

    def __init__(
        self, config: QNetworkConfig, weights: Mapping[str, Array], gradients: Mapping[str, Array], noise: Noise
    ) -> None:
        """Read ``weights`` and ``noise`` in place, where the learner changes them, and write to ``gradients``."""
        of_torso, of_head = config.torso.activations, config.head.activations
        self._gradients = gradients
        self._noisy = {name: NoisyWeights(name, weights, *each) for name, each in noise.items()}
        self._torso = self._layers(weights, "torso", of_torso)
        self._advantage = self._layers(weights, "advantage_head", of_head)
        self._value = self._layers(weights, "value_head", of_head) if config.head.dueling else None
        self._has_torso = bool(of_torso)
        self._shape = (config.num_actions, config.head.num_atoms)
        self._centers_bytes, self._masking = config.sees_byte_vectors, config.masking

    def forward(self, obs: Array) -> Passed:
        """Return the outputs of ``obs [B, N]`` with the present noise, and what ``backward`` needs."""
        for layer in self._noisy.values():
            layer.perturb()
        torso = self._torso.forward(self._seen(obs))
        advantage = self._advantage.forward(torso[-1])
        per_action = advantage[-1].reshape(-1, *self._shape)
        if self._value is None:
            return Passed(torso, advantage, None, per_action)
        value = self._value.forward(torso[-1])
        add_value(per_action, value[-1])  # in place: no slope needs the outputs of a linear layer
        return Passed(torso, advantage, value, per_action)

    def backward(self, passed: Passed, gradient: Array) -> None:
        """Write the gradient of all parameters; ``gradient [B, A, K]`` is the gradient of the outputs."""
        rows = len(gradient)
        if self._value is None or passed.value is None:
            features = self._advantage.backward(passed.advantage, gradient.reshape(rows, -1), self._has_torso)
        else:
            of_value = np.add.reduce(gradient, axis=1)
            of_advantage = gradient - (of_value / np.float32(self._shape[0]))[:, None]
            features = self._advantage.backward(passed.advantage, of_advantage.reshape(rows, -1), self._has_torso)
            more = self._value.backward(passed.value, of_value, self._has_torso)
            if self._has_torso:
                features += more
        self._torso.backward(passed.torso, features, False)
        for name, layer in self._noisy.items():
            layer.write_gradient_of_sigma(name, self._gradients)

    def _seen(self, obs: Array) -> Array:
        if self._masking is not None:
            obs = self._masking.observations(obs)
        return centered_bytes(obs) if self._centers_bytes else obs.astype(np.float32, copy=False)

    def _layers(self, weights: Mapping[str, Array], prefix: str, activations: Sequence[str]) -> DenseLayers[Array]:
        names = [f"{prefix}.{2 * index}" for index in range(len(activations))]
        return DenseLayers(
            [self._layer(weights, name, activation) for name, activation in zip(names, activations, strict=True)]
        )

    def _layer(self, weights: Mapping[str, Array], name: str, activation: str) -> ArrayLayer:
        noisy, gradients = self._noisy.get(name), self._gradients
        if noisy is None:
            weight, bias, suffix = weights[f"{name}.weight"], weights[f"{name}.bias"], ""
        else:
            weight, bias, suffix = noisy.weight, noisy.bias, "_mu"
        kind = LargeArrayLayer if weight.size >= MIN_WEIGHTS_FOR_TORCH else ArrayLayer
        return kind(weight, bias, gradients[f"{name}.weight{suffix}"], gradients[f"{name}.bias{suffix}"], activation)
