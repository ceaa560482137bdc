"""The shape of a network, for either library, and the shapes of its parameters.

Also masking: which actions of a row are allowed, and outputs of networks that obey it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import gymnasium as gym
import numpy as np

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.user_code import NO_MODULES, UserClass, UserModules
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    from torch import Tensor

BYTE_CENTER = 128
"""The middle of a byte's range: bytes x become (x - 128) / 128 if they should be centred at 0."""
NORM_EPSILON = 1e-5
"""Added to the variance when the outputs of a layer are normalised."""
MASKED: Final = -1e30
"""The logit or value of an action that is not allowed. Its probability is 0 in float32, and products of it with a
probability or a coefficient stay finite, as they would not with minus infinity."""

Numbers = TypeVar("Numbers", "Array", "Tensor")


@dataclass(frozen=True)
class Masking:
    """Divides rows ``[B, N + A]``, and masks outputs ``[B, A]``.

    A row is an observation, flat, followed by the mask of A actions: see ``rlexp.envs.action_masks``.
    """

    observation_shape: tuple[int, ...]
    """Shape of an observation of N numbers."""
    num_actions: int

    def observations(self, rows: Numbers) -> Numbers:
        """Return the observations ``[B, *observation_shape]``, as a view if they are vectors."""
        observations = cast(Any, rows)[:, : -self.num_actions]
        if len(self.observation_shape) > 1:
            observations = observations.reshape((rows.shape[0], *self.observation_shape))
        return cast(Numbers, observations)

    def allowed(self, rows: Numbers) -> Numbers:
        """Return whether each action is allowed ``[B, A]``."""
        return cast(Numbers, cast(Any, rows)[:, -self.num_actions :] != 0)

    def of_arrays(self, outputs: Array, rows: Array) -> Array:
        """Return ``outputs [B, A]`` with MASKED for the actions that ``rows`` do not allow."""
        return masked(outputs, self.allowed(rows))

    def of_tensors(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the same of tensors; no gradient passes a masked output."""
        return outputs.masked_fill(~self.allowed(rows), MASKED)


def masked(outputs: Array, allowed: Array) -> Array:
    """Return ``outputs [B, A]`` with MASKED where an action is not ``allowed [B, A]``."""
    return np.where(allowed, outputs, np.float32(MASKED))


@dataclass(frozen=True)
class CustomTorso:
    """A torso of the user's own, which every process that builds the network imports for itself."""

    user_class: UserClass
    modules: UserModules
    """Places of its module."""
    observation_space: gym.Space[Any]
    """The space of what the network sees."""


@dataclass(frozen=True)
class TorsoConfig:
    """The layers between the observation and the heads; its words are the values of keys under ``config.model``."""

    fcnet_hiddens: tuple[int, ...]
    """Sizes of the layers that see a vector."""
    fcnet_activation: str
    conv_filters: tuple[ConvFilter, ...] | None
    """The convolutions that see an image; None: those that RLlib had for its size."""
    conv_activation: str
    post_fcnet_hiddens: tuple[int, ...]
    """Sizes of the layers after either."""
    post_fcnet_activation: str
    zero_mean: bool
    """Whether the bytes of an image are scaled to -1 .. 1 instead of 0 .. 1."""
    layer_norm: bool = False
    """Whether the outputs of each layer are normalised before its activation (Ba et al. 2016)."""
    custom: CustomTorso | None = None
    """The user's torso that replaces all these layers."""

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation after each of the layers that see a vector, in the words of the keys."""
        first = (self.fcnet_activation,) * len(self.fcnet_hiddens)
        return first + (self.post_fcnet_activation,) * len(self.post_fcnet_hiddens)


def torso_config_of(
    config: CommonConfig, observation_space: gym.Space[Any] | None = None, modules: UserModules = NO_MODULES
) -> TorsoConfig:
    """Return the torso that ``config`` describes for observations of a (checked) space.

    ``modules`` may be imported; they and the space are only for a user's torso.
    """
    model = config.model
    custom = None
    if model.custom_model is not None:
        assert observation_space is not None
        custom = CustomTorso(model.custom_model, modules, _seen_space(observation_space, config))
    return TorsoConfig(
        fcnet_hiddens=tuple(model.fcnet_hiddens),
        fcnet_activation=model.fcnet_activation,
        conv_filters=model.conv_filters,
        conv_activation=model.conv_activation,
        post_fcnet_hiddens=tuple(model.post_fcnet_hiddens),
        post_fcnet_activation=model.post_fcnet_activation,
        zero_mean=config.effective_preprocessor_pref == "rllib" and model.zero_mean,
        layer_norm=model.layer_norm,
        custom=custom,
    )


def _seen_space(space: gym.Space[Any], config: CommonConfig) -> gym.spaces.Box:
    """Return the space of what a user's torso sees: unchanged bytes, or float32.

    Standardised observations have no bounds.
    """
    assert space.shape is not None
    is_standardised = config.observation_filter != "NoFilter"
    if isinstance(space, gym.spaces.Box) and not is_standardised:
        if space.dtype == np.uint8:
            return space
        return gym.spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    low, high = (-np.inf, np.inf) if is_standardised else (0.0, 1.0)
    return gym.spaces.Box(low, high, space.shape, np.float32)


@dataclass(frozen=True)
class HeadConfig:
    """The layers between the torso's features and the action values."""

    hiddens: tuple[int, ...]
    """Sizes of the layers in the value and in the advantage head."""
    dueling: bool
    noisy: bool = False
    """Whether the heads consist of noisy layers."""
    sigma0: float = 0.0
    """Deviation of the noisy layers' noise at the start, times the root of their width."""
    num_atoms: int = 1
    """Atoms or quantiles of the distribution of returns; 1 for the mean alone."""
    v_min: float = 0.0
    """The lowest atom."""
    v_max: float = 0.0
    """The highest atom."""
    has_quantiles: bool = False
    """Whether several outputs per action are quantiles, not logits of atoms."""

    @property
    def is_categorical(self) -> bool:
        """Whether the outputs are logits of atoms."""
        return self.num_atoms > 1 and not self.has_quantiles

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation after each layer of a head, in the words of the keys."""
        return ("relu",) * len(self.hiddens) + ("linear",)


@dataclass(frozen=True)
class MemoryConfig:
    """The LSTM between a torso and the heads of a recurrent network."""

    cell_size: int
    """Numbers H of its output; its state has as many again."""
    num_previous: int = 0
    """Numbers P about the previous step that it sees beside the features: see ``PreviousStep``."""


@dataclass(frozen=True)
class QNetworkConfig:
    """The shape of a Q-network."""

    observation_shape: tuple[int, ...]
    """``(N,)``, or ``(H, W, C)`` for images."""
    num_actions: int
    torso: TorsoConfig
    head: HeadConfig
    sees_byte_vectors: bool = False
    """Whether observations are vectors of bytes, 0 to 255, which it sees as (x - 128) / 128: RAM of Atari games."""
    masking: Masking | None = None
    """How the action masks after observations are obeyed; None: there are none."""
    memory: MemoryConfig | None = None
    """The LSTM between torso and heads; None: there is none."""


@dataclass(frozen=True)
class ActorCriticConfig:
    """The shape of a network with a policy and a value function."""

    observation_shape: tuple[int, ...]
    """``(N,)``, or ``(H, W, C)`` for images."""
    num_inputs: int
    """Inputs K of the distribution of an action."""
    num_free_log_std: int
    """How many of them, the last ones, are parameters instead of functions of the observation."""
    torso: TorsoConfig
    shares_torso: bool
    """Whether policy and value function share the layers before their heads."""
    sees_byte_vectors: bool = False
    masking: Masking | None = None
    """Both are the same as in QNetworkConfig."""
    memory: MemoryConfig | None = None
    """The LSTM after the torso, which policy and value function then share; None: there is none."""


@dataclass(frozen=True)
class LayersConfig:
    """Layers after a torso: of a policy, or of a critic."""

    hiddens: tuple[int, ...]
    activation: str
    """After each of them, in the words of the keys; the last layer has none."""

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation after each layer, with the last one."""
        return (self.activation,) * len(self.hiddens) + ("linear",)


@dataclass(frozen=True)
class PolicyAndCriticsConfig:
    """The shapes of a policy and of its critics, which share no layers: the networks of DDPG, TD3 and SAC."""

    observation_shape: tuple[int, ...]
    """The same as in QNetworkConfig."""
    num_inputs: int
    """Inputs K of the distribution of an action: outputs of the policy."""
    torso: TorsoConfig
    """The layers before the policy's and before each critic's own."""
    policy: LayersConfig
    critic: LayersConfig
    num_critics: int
    num_numbers: int
    """Numbers D of a continuous action, which critics see; 0: they have a value for each of K actions."""
    sees_byte_vectors: bool = False
    masking: Masking | None = None
    """Both are the same as in QNetworkConfig."""


def has_numpy_form(config: QNetworkConfig | ActorCriticConfig | PolicyAndCriticsConfig) -> bool:
    """Return whether a network can be computed in NumPy: our own layers for vectors can."""
    return config.torso.custom is None and len(config.observation_shape) == 1


Shapes = dict[str, tuple[int, ...]]
"""The shapes of a network's parameters, by name."""


def parameter_shapes(config: QNetworkConfig | ActorCriticConfig) -> Shapes:
    """Return the shape of each parameter; this needs torch only for networks that NumPy cannot compute."""
    if has_numpy_form(config):
        return dict(
            _actor_critic_shapes(config) if isinstance(config, ActorCriticConfig) else _q_network_shapes(config)
        )
    from rlexp.models.networks import ActorCritic, QNetwork
    from rlexp.models.torsos import shapes_of_network

    if isinstance(config, ActorCriticConfig):
        return shapes_of_network(ActorCritic, config)
    return shapes_of_network(QNetwork, config)


def shapes_of_layers(
    part: str, sizes: Sequence[int], has_norms: bool = False, suffixes: Sequence[str] = ("",)
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the parameters of fully connected layers and their norms; activations have none."""
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        place = (2 + has_norms) * index
        for suffix in suffixes:
            yield f"{part}.{place}.weight{suffix}", (fan_out, fan_in)
            yield f"{part}.{place}.bias{suffix}", (fan_out,)
        if has_norms:
            yield from ((f"{part}.{place + 1}.{name}", (fan_out,)) for name in ("weight", "bias"))


def torso_sizes(observation_shape: tuple[int, ...], torso: TorsoConfig) -> tuple[int, ...]:
    """Return the sizes of the input and of the fully connected layers of a torso."""
    return (*observation_shape, *torso.fcnet_hiddens, *torso.post_fcnet_hiddens)


def _q_network_shapes(config: QNetworkConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    torso = config.torso
    yield from shapes_of_layers("torso", torso_sizes(config.observation_shape, torso), torso.layer_norm)
    for part, sizes in head_sizes(config).items():
        yield from shapes_of_layers(part, sizes, suffixes=("_mu", "_sigma") if config.head.noisy else ("",))
    yield from _memory_shapes(config.memory, torso_sizes(config.observation_shape, torso)[-1])


def _memory_shapes(memory: MemoryConfig | None, num_features: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if memory is None:
        return
    gates = 4 * memory.cell_size
    for seen, number in (("ih", num_features + memory.num_previous), ("hh", memory.cell_size)):
        yield f"memory.lstm.weight_{seen}_l0", (gates, number)
        yield f"memory.lstm.bias_{seen}_l0", (gates,)


def _actor_critic_shapes(config: ActorCriticConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    torso, sizes = config.torso, torso_sizes(config.observation_shape, config.torso)
    for part in ("policy_torso",) if config.shares_torso else ("policy_torso", "value_torso"):
        yield from shapes_of_layers(part, sizes, torso.layer_norm)
    yield from _memory_shapes(config.memory, sizes[-1])
    num_features = sizes[-1] if config.memory is None else config.memory.cell_size
    for head, outputs in (("policy_head", config.num_inputs - config.num_free_log_std), ("value_head", 1)):
        yield f"{head}.weight", (outputs, num_features)
        yield f"{head}.bias", (outputs,)
    if config.num_free_log_std:
        yield "log_std", (config.num_free_log_std,)


def head_sizes(config: QNetworkConfig) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the input and layers of each head, by name, for a config with ``has_numpy_form``."""
    head, memory = config.head, config.memory
    features = torso_sizes(config.observation_shape, config.torso)[-1] if memory is None else memory.cell_size
    sizes = {"advantage_head": (features, *head.hiddens, config.num_actions * head.num_atoms)}
    return sizes | ({"value_head": (features, *head.hiddens, head.num_atoms)} if head.dueling else {})
