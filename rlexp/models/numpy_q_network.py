"""The Q-network of fully connected layers in NumPy, for acting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat

import numpy as np

from rlexp.models.network_config import QNetworkConfig
from rlexp.models.numpy_layers import (
    Layer,
    Linear,
    NoisyLayer,
    centered_bytes,
    forward,
    identity,
    layers_of,
    live_layers_of,
    relu,
    side_by_side,
    torso_activations,
    with_centered_bytes,
)
from rlexp.sample_batch import Array


class NumpyQNetwork:
    """Maps observations to what a ``QNetwork`` of the same weights computes for them, but for rounding.

    Both heads and the sum that dueling makes of them (Wang et al. 2016, equation 9) are linear maps side
    by side, so ``load`` folds them into one layer each: the heads cost no more calls than a plain one would.
    Noisy heads, and all that ``share`` reads in place, stay apart.
    """

    def __init__(self, config: QNetworkConfig, is_noisy: bool = False) -> None:
        """Take the shape of the network; raises ValueError for one that ``can_be`` denies.

        Where it ``is_noisy``, the noise of the last ``resample_noise`` acts in its noisy head, else none.
        """
        if not can_be(config):
            raise ValueError("only fully connected networks have a NumPy form")
        self._config = config
        self._torso_activations = torso_activations(config.torso)
        self._head_activations = (*repeat(relu, len(config.head.hiddens)), identity)
        self._noise = _Noise(config) if is_noisy and config.head.noisy else None
        self._layers: tuple[Layer, ...]  # not before ``load``: without layers, an observation would be its own output
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
        """Read ``weights`` where they are from now on, also when their owner changes them; names as for ``load``."""
        self._layers = tuple(live_layers_of(_means(weights), "torso", self._torso_activations))
        self._advantage = self._live_head(weights, "advantage_head")
        self._value = self._live_head(weights, "value_head") if self._config.head.dueling else ()
        self._centers_obs = self._config.sees_byte_vectors

    def resample_noise(self, rng: np.random.Generator) -> None:
        """Draw fresh noise for every noisy layer; nothing where it is not noisy."""
        if self._noise is not None:
            self._noise.resample(rng)

    def outputs(self, obs: Array) -> Array:
        """Return float32 action values ``[B, A]`` of ``obs [B, N]``, or logits ``[B, A, K]`` of their K atoms."""
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
        if not self._value:
            return advantage
        per_action = advantage.reshape(len(features), self._config.num_actions, -1)
        level = forward(self._value, features)
        level -= np.add.reduce(per_action, axis=1) / np.float32(self._config.num_actions)
        per_action += level[:, None]
        return advantage

    def _live_head(self, weights: Mapping[str, Array], part: str) -> tuple[Layer, ...]:
        means = live_layers_of(_means(weights), part, self._head_activations)
        if self._noise is None:
            return tuple(means)
        linear = (identity,) * len(self._head_activations)
        deviations = live_layers_of(_deviations(weights), part, linear)
        noise = self._noise.of(part)
        parts = zip(means, deviations, noise, strict=True)
        return tuple(NoisyLayer(mean, deviation, *each) for mean, deviation, each in parts)


class _Noise:
    """Owns the noise of all noisy layers, in one array, so that one call draws it."""

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


def can_be(config: QNetworkConfig) -> bool:
    """Return whether a NumPy form exists: of our own layers for vectors."""
    return config.torso.custom is None and len(config.observation_shape) == 1


def head_sizes(config: QNetworkConfig) -> dict[str, tuple[int, ...]]:
    """Return, by the name of each head of a network that ``can_be``, the sizes of its input and of its layers."""
    torso, head = config.torso, config.head
    features = (*config.observation_shape, *torso.fcnet_hiddens, *torso.post_fcnet_hiddens)[-1]
    sizes = {"advantage_head": (features, *head.hiddens, config.num_actions * head.num_atoms)}
    return sizes | ({"value_head": (features, *head.hiddens, head.num_atoms)} if head.dueling else {})


def _means(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights that act without noise, by the names that they have where no layer is noisy."""
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
    """Return ``columns [N, A * K]`` less the mean of each atom's over all actions."""
    per_action = columns.reshape(len(columns), num_actions, -1)
    centered: Array = (per_action - per_action.mean(axis=1, keepdims=True)).reshape(columns.shape)
    return centered
