"""Fully connected networks in NumPy, for acting: for a few rows, torch would be mostly overhead.

Layers and activations, then the Q-networks and actor-critics with which policies act. No torch is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Protocol

import numpy as np

from rlexp.models.memory import NumpyLSTM
from rlexp.models.network_config import (
    BYTE_CENTER,
    NORM_EPSILON,
    ActorCriticConfig,
    QNetworkConfig,
    has_numpy_form,
    head_sizes,
)
from rlexp.sample_batch import Array

Activation = Callable[[Array], Array]
"""Maps an array ``[B, N]``, which it may overwrite, to one of the same shape."""


class Layer(Protocol):
    """One layer of a network."""

    def apply(self, x: Array) -> Array:
        """Return the output ``[B, fan_out]`` of ``x [B, fan_in]``, both float32, without changing ``x``."""


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Normalises the output of each of G layers side by side, per row (Ba et al. 2016, equations 3 and 4)."""

    gain: Array
    """``[G, N]``."""
    shift: Array
    """``[G, N]``."""

    def apply(self, y: Array) -> Array:
        """Return ``gain (y - mean) / deviation + shift`` of ``y [B, G * N]``, which it overwrites."""
        groups = y.reshape(len(y), *self.gain.shape)
        groups -= groups.mean(axis=2, keepdims=True)
        variances = np.square(groups).mean(axis=2, keepdims=True)
        groups *= self.gain / np.sqrt(variances + np.float32(NORM_EPSILON))
        groups += self.shift
        return groups.reshape(y.shape)

    def beside(self, other: LayerNorm) -> LayerNorm:
        """Return both as one, for layers of the same size side by side."""
        return LayerNorm(np.concatenate([self.gain, other.gain]), np.concatenate([self.shift, other.shift]))


@dataclass(frozen=True)
class Linear:
    """A layer ``x @ weight + bias``, normalised if it has a ``norm``, then ``activation``."""

    weight: Array
    """``[fan_in, fan_out]``."""
    bias: Array
    """``[fan_out]``."""
    activation: Activation
    norm: LayerNorm | None = None

    def apply(self, x: Array) -> Array:
        y: Array = x @ self.weight
        y += self.bias
        return self.activation(y if self.norm is None else self.norm.apply(y))


@dataclass(frozen=True, eq=False)
class NoisyLayer:
    """A linear layer with factorised noise on its weights (Fortunato et al. 2018, section 3), then ``activation``.

    For a few rows, applying the noise to input and output is cheaper than perturbing the weights.
    """

    mean: Linear
    """The layer without noise."""
    deviation: Linear
    """Factor of the noise, weight by weight."""
    noise_in: Array
    """``[fan_in]``, drawn by its owner."""
    noise_out: Array
    """``[fan_out]``."""

    def apply(self, x: Array) -> Array:
        noise = (x * self.noise_in) @ self.deviation.weight
        noise += self.deviation.bias
        noise *= self.noise_out
        y: Array = x @ self.mean.weight
        y += self.mean.bias
        y += noise
        return self.mean.activation(y)


def forward(layers: Iterable[Layer], obs: Array) -> Array:
    """Return the output of ``layers`` (float32 ``[B, K]``) for observations ``[B, N]``."""
    x = obs.astype(np.float32, copy=False)
    for layer in layers:
        x = layer.apply(x)
    return x


def layers_of(
    weights: Mapping[str, Array], prefix: str, activations: Sequence[str], in_place: bool = False
) -> Iterator[Linear]:
    """Yield the layers of an ``nn.Sequential`` of linear layers, each followed by its activation of ACTIVATIONS.

    A LayerNorm may be between the two. With ``in_place`` they read the weights in place, also after changes.
    """
    step = 3 if f"{prefix}.1.weight" in weights else 2
    for index, activation in enumerate(activations):
        norm = f"{prefix}.{step * index + 1}" if step == 3 else None
        yield layer_of(weights, f"{prefix}.{step * index}", activation, in_place, norm)


def layer_of(
    weights: Mapping[str, Array], name: str, activation: str, in_place: bool = False, norm: str | None = None
) -> Linear:
    """Return one of these layers, by its name and the name of its ``norm``."""
    arrays = [weights[f"{name}.weight"].T, weights[f"{name}.bias"]]
    arrays += [] if norm is None else [weights[f"{norm}.weight"][None], weights[f"{norm}.bias"][None]]
    weight, bias, *of_norm = arrays if in_place else [array.copy(order="C") for array in arrays]
    return Linear(weight, bias, ACTIVATIONS[activation], LayerNorm(*of_norm) if of_norm else None)


def centered_bytes(obs: Array) -> Array:
    """Return (x - 128) / 128 of bytes x, float32."""
    return np.asarray((obs.astype(np.float32, copy=False) - np.float32(BYTE_CENTER)) / np.float32(BYTE_CENTER))


def with_centered_bytes(layer: Linear) -> Linear:
    """Return a layer that gives for bytes x what ``layer`` gives for (x - 128) / 128."""
    return replace(layer, weight=layer.weight / BYTE_CENTER, bias=layer.bias - layer.weight.sum(axis=0))


def side_by_side(a: Linear, b: Linear, share_input: bool) -> Linear:
    """Return two layers as one with both outputs: of one input or, after such a layer, of both halves."""
    bias = np.concatenate([a.bias, b.bias])
    norm = None if a.norm is None or b.norm is None else a.norm.beside(b.norm)
    if share_input:
        return Linear(np.concatenate([a.weight, b.weight], axis=1), bias, a.activation, norm)
    zeros_a = np.zeros((len(a.weight), b.weight.shape[1]), a.weight.dtype)
    zeros_b = np.zeros((len(b.weight), a.weight.shape[1]), b.weight.dtype)
    return Linear(np.block([[a.weight, zeros_a], [zeros_b, b.weight]]), bias, a.activation, norm)


def add_value(advantages: Array, value: Array) -> None:
    """Compute ``V + A - mean A`` of ``advantages [B, A, K]`` in place; overwrites ``value [B, K]`` too.

    Dueling combines its two heads in this way (Wang et al. 2016, equation 9).
    """
    value -= np.add.reduce(advantages, axis=1) / np.float32(advantages.shape[1])
    advantages += value[:, None]


def _relu(x: Array) -> Array:
    return np.maximum(x, 0, out=x)


def _identity(x: Array) -> Array:
    return x


def _tanh(x: Array) -> Array:
    tanh: Array = np.tanh(x, out=x)
    return tanh


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _swish(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) is infinite only if x / (1 + exp(-x)) is 0
        swish: Array = x / (1 + np.exp(-x))
    return swish


ACTIVATIONS: Mapping[str, Activation] = {
    "tanh": _tanh,
    "relu": _relu,
    "elu": _elu,
    "swish": _swish,
    "linear": _identity,
}


class NumpyQNetwork:
    """Maps observations to the outputs of a ``QNetwork`` of the same weights, except for rounding.

    Both heads and their sum in dueling (Wang et al. 2016, equation 9) are linear maps side by side. So ``load`` merges
    them into one layer each, and the heads cost no more calls than a plain one. Noisy heads, and weights that ``share``
    reads in place, stay apart.
    """

    def __init__(self, config: QNetworkConfig, is_noisy: bool = False) -> None:
        """Initialise from the shape of the network; raises ValueError without ``has_numpy_form``.

        If it ``is_noisy``, the noise of the last ``resample_noise`` acts in its noisy head; else none.
        """
        if not has_numpy_form(config):
            raise ValueError("only fully connected networks have a NumPy form")
        self._config = config
        self._torso_activations, self._head_activations = config.torso.activations, config.head.activations
        self._noise = _Noise(config) if is_noisy and config.head.noisy else None
        self._layers: tuple[Layer, ...]  # Not before ``load``: without layers, an observation would be its own output.
        self._advantage: tuple[Layer, ...] = ()
        self._value: tuple[Layer, ...] = ()
        self._centers_obs = False

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of a ``QNetwork``, by the names of its ``state_dict``."""
        if self._noise is not None:
            self.share({name: weight.copy() for name, weight in weights.items()})
            return
        weights = _means(weights)
        torso = layers_of(weights, "torso", self._torso_activations)
        head = tuple(layers_of(weights, "advantage_head", self._head_activations))
        if self._config.head.dueling:
            value = tuple(layers_of(weights, "value_head", self._head_activations))
            head = tuple(_dueling(head, value, self._config.num_actions))
        first, *others = chain(torso, head)
        self._layers = (with_centered_bytes(first) if self._config.sees_byte_vectors else first, *others)
        self._advantage = self._value = ()
        self._centers_obs = False

    def share(self, weights: Mapping[str, Array]) -> None:
        """Read ``weights`` in place from now on, also after changes by their owner; names as for ``load``."""
        self._layers = tuple(layers_of(_means(weights), "torso", self._torso_activations, in_place=True))
        self._advantage = self._live_head(weights, "advantage_head")
        self._value = self._live_head(weights, "value_head") if self._config.head.dueling else ()
        self._centers_obs = self._config.sees_byte_vectors

    def resample_noise(self, rng: np.random.Generator) -> None:
        """Draw fresh noise for every noisy layer; does nothing if it is not noisy."""
        if self._noise is not None:
            self._noise.resample(rng)

    def outputs(self, obs: Array) -> Array:
        """Return float32 action values ``[B, A]`` of ``obs [B, N]``, or logits ``[B, A, K]`` of their K atoms."""
        if self._config.masking is not None:
            obs = self._config.masking.observations(obs)
        if self._centers_obs:
            obs = centered_bytes(obs)
        outputs = forward(self._layers, obs)
        if self._advantage:
            outputs = self._joined_heads(outputs)
        num_atoms = self._config.head.num_atoms
        return outputs if num_atoms == 1 else outputs.reshape(len(obs), self._config.num_actions, num_atoms)

    def _joined_heads(self, features: Array) -> Array:
        """Return ``V + A - mean A`` ``[B, A * K]`` of ``features [B, F]``, or A alone without dueling."""
        advantage = forward(self._advantage, features)
        if self._value:
            per_action = advantage.reshape(len(features), self._config.num_actions, -1)
            add_value(per_action, forward(self._value, features))
        return advantage

    def _live_head(self, weights: Mapping[str, Array], part: str) -> tuple[Layer, ...]:
        means = layers_of(_means(weights), part, self._head_activations, in_place=True)
        if self._noise is None:
            return tuple(means)
        linear = ("linear",) * len(self._head_activations)
        deviations = layers_of(_deviations(weights), part, linear, in_place=True)
        noise = self._noise.of(part)
        parts = zip(means, deviations, noise, strict=True)
        return tuple(NoisyLayer(mean, deviation, *each) for mean, deviation, each in parts)


class _Noise:
    """Owns the noise of all noisy layers in one array, so that one call draws it."""

    def __init__(self, config: QNetworkConfig) -> None:
        shapes = {part: list(pairwise(sizes)) for part, sizes in head_sizes(config).items()}
        lengths = [length for pairs in shapes.values() for pair in pairs for length in pair]
        self._values = np.zeros(sum(lengths), np.float32)
        views = iter(np.split(self._values, np.cumsum(lengths)[:-1]))
        self._parts = {part: [(next(views), next(views)) for _ in pairs] for part, pairs in shapes.items()}

    def of(self, part: str) -> list[tuple[Array, Array]]:
        """Return the noise of input and output of each layer of a head."""
        return self._parts[part]

    def resample(self, rng: np.random.Generator) -> None:
        """Draw ``sign(x) sqrt(|x|)``, x from a standard normal distribution."""
        drawn = rng.standard_normal(len(self._values), np.float32)
        np.sqrt(np.abs(drawn), out=self._values)
        np.copysign(self._values, drawn, out=self._values)


def _means(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights without noise, under the names of layers that are not noisy."""
    return {name.removesuffix("_mu"): array for name, array in weights.items() if not name.endswith("_sigma")}


def _deviations(weights: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removesuffix("_sigma"): array for name, array in weights.items() if name.endswith("_sigma")}


def _dueling(advantage: Sequence[Linear], value: Sequence[Linear], num_actions: int) -> Iterator[Linear]:
    """Yield layers that compute ``V + A - mean A``, atom by atom, from the layers of both heads."""
    *hidden, (last_a, last_v) = zip(advantage, value, strict=True)
    for index, (a, v) in enumerate(hidden):
        yield side_by_side(a, v, share_input=index == 0)
    weight = _without_mean(last_a.weight, num_actions)
    value_weight = np.tile(last_v.weight, num_actions)
    folded = np.concatenate([weight, value_weight]) if hidden else weight + value_weight
    bias = _without_mean(last_a.bias[None], num_actions)[0] + np.tile(last_v.bias, num_actions)
    yield Linear(folded, bias, last_a.activation)


def _without_mean(columns: Array, num_actions: int) -> Array:
    """Return ``columns [N, A * K]`` minus the mean of each atom over all actions."""
    per_action = columns.reshape(len(columns), num_actions, -1)
    centered: Array = (per_action - per_action.mean(axis=1, keepdims=True)).reshape(columns.shape)
    return centered


class NumpyActorCritic:
    """Maps observations to the outputs of an ``ActorCritic`` of the same weights, except for rounding.

    Both torsos are computed side by side, so that they take no more calls than one.
    """

    def __init__(self, config: ActorCriticConfig) -> None:
        """Initialise from the shape of the network; raises ValueError without ``has_numpy_form``."""
        if not has_numpy_form(config):
            raise ValueError("only fully connected networks have a NumPy form")
        self._config = config
        self._layers: tuple[Linear, ...]  # not before ``load``
        self._log_std: Array | None = None

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of an ``ActorCritic``, by the names of its ``state_dict``."""
        activations = self._config.torso.activations
        layers = [*layers_of(weights, "policy_torso", activations)]
        policy, value = (layer_of(weights, name, "linear") for name in ("policy_head", "value_head"))
        if self._config.shares_torso:
            layers.append(side_by_side(policy, value, share_input=True))
        else:
            layers = [
                side_by_side(a, b, share_input=index == 0)
                for index, (a, b) in enumerate(
                    zip([*layers, policy], [*layers_of(weights, "value_torso", activations), value], strict=True)
                )
            ]
        first, *others = layers
        self._layers = (with_centered_bytes(first) if self._config.sees_byte_vectors else first, *others)
        self._log_std = weights["log_std"].copy() if self._config.num_free_log_std else None

    def outputs(self, obs: Array) -> tuple[Array, Array]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]`` (float32) of ``obs [B, N]``."""
        return self._finished(forward(self._layers, self._unmasked(obs)), obs)

    def _unmasked(self, obs: Array) -> Array:
        masking = self._config.masking
        return obs if masking is None else masking.observations(obs)

    def _finished(self, both: Array, obs: Array) -> tuple[Array, Array]:
        """Return the results of ``outputs`` from both heads' ``[B, K + 1]``."""
        masking = self._config.masking
        inputs, values = both[:, :-1], both[:, -1]
        if masking is not None:
            inputs = masking.of_arrays(inputs, obs)
        if self._log_std is not None:
            log_std = np.broadcast_to(self._log_std, (len(inputs), len(self._log_std)))
            inputs = np.concatenate([inputs, log_std], axis=1)
        return inputs, values


class NumpyRecurrentActorCritic(NumpyActorCritic):
    """A NumpyActorCritic with an LSTM between its torso and its heads."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of an ``ActorCritic`` with a memory."""
        self._layers = tuple(layers_of(weights, "policy_torso", self._config.torso.activations))
        self._lstm = NumpyLSTM(weights)
        policy, value = (layer_of(weights, name, "linear") for name in ("policy_head", "value_head"))
        self._heads = side_by_side(policy, value, share_input=True)
        self._log_std = weights["log_std"].copy() if self._config.num_free_log_std else None

    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array, Array]:
        """Return the ``outputs`` of ``obs [M, N]``, and the states ``[M, 2 H]`` after them; see ``NumpyLSTM.step``."""
        seen = self._unmasked(obs)
        features = forward(self._layers, centered_bytes(seen) if self._config.sees_byte_vectors else seen)
        remembered, following = self._lstm.step(features, previous, states)
        return *self._finished(self._heads.apply(remembered), obs), following
