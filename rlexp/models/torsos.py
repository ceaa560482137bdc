"""Torsos, from an observation to features, with convolutions for images; and the weights of any network.

Weights have names, under which they are sent to policies and read from checkpoints. A user's torso is made as an
experiment names it, and tried before training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import pairwise
from typing import Final, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.model import CUSTOM_MODEL, misfit, pads, sides_of_layers
from rlexp.errors import RlexpError, TrialError, UsageError
from rlexp.models.network_config import (
    BYTE_CENTER,
    NORM_EPSILON,
    ActorCriticConfig,
    CustomTorso,
    PolicyAndCriticsConfig,
    QNetworkConfig,
    Shapes,
    TorsoConfig,
)
from rlexp.sample_batch import Array
from rlexp.user_code.classes import find_class, prepare_imports
from rlexp.user_code.finding import raised_by_user

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "linear": nn.Identity,
}

NetworkT = TypeVar("NetworkT", QNetworkConfig, ActorCriticConfig, PolicyAndCriticsConfig)
LARGEST_SMALL_IMAGE = 42
"""Largest side of an image with a small first kernel, so that the last kernel sees as much as with 84 pixels."""


class VectorTorso(nn.Sequential):
    """Fully connected layers that see vectors ``[B, N]`` of any number type."""

    def __init__(self, size: int, config: TorsoConfig, centers_bytes: bool) -> None:
        """Initialise; with ``centers_bytes`` the layers see (x - 128) / 128."""
        sizes = (size, *config.fcnet_hiddens)
        behind = (sizes[-1], *config.post_fcnet_hiddens)
        norm = config.layer_norm
        super().__init__(*mlp(sizes, config.fcnet_activation, norm), *mlp(behind, config.post_fcnet_activation, norm))
        self.num_features = behind[-1]
        self._centers_bytes = centers_bytes

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``[B, num_features]``."""
        return self.features(self.seen(obs))

    def features(self, seen: Tensor) -> Tensor:
        """Return features ``[B, num_features]`` of the result of ``seen``."""
        features: Tensor = super().forward(seen)  # type: ignore[no-untyped-call]
        return features

    def seen(self, obs: Tensor) -> Tensor:
        """Return observations as the first layer sees them."""
        seen = obs.to(torch.float32)
        return (seen - BYTE_CENTER) / BYTE_CENTER if self._centers_bytes else seen


class ImageTorso(nn.Module):
    """Convolutions that see images ``[B, H, W, C]``, followed by fully connected layers.

    Bytes are scaled here, on the computing device, so they are sent and stored as bytes. Images of floating-point
    numbers are not changed.
    """

    def __init__(self, shape: tuple[int, int, int], config: TorsoConfig) -> None:
        super().__init__()
        height, width, channels = shape
        filters = config.conv_filters or default_filters(height, width)
        self.convolutions, flat = convolutions(
            (channels, height, width), filters, config.conv_activation, config.layer_norm
        )
        # Images arrive channels last; weights in the same layout make an update 1.3, acting 3 times as fast on a CPU.
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        sizes = (flat, *config.post_fcnet_hiddens)
        self.behind = mlp(sizes, config.post_fcnet_activation, config.layer_norm)
        self.num_features = sizes[-1]
        self._zero_mean = config.zero_mean

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``[B, num_features]``."""
        return self.features(self.seen(obs))

    def features(self, seen: Tensor) -> Tensor:
        """Return features ``[B, num_features]`` of the result of ``seen``."""
        features: Tensor = self.behind(self.convolutions(seen))
        return features

    def seen(self, obs: Tensor) -> Tensor:
        """Return images as the first convolution sees them: float32 ``[B, C, H, W]``, in the layout of its weights."""
        pixels = obs.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.channels_last)
        if obs.dtype != torch.uint8:
            return pixels
        return pixels.sub_(BYTE_CENTER).div_(BYTE_CENTER) if self._zero_mean else pixels.div_(255)


def make_torso(
    shape: tuple[int, ...], config: TorsoConfig, sees_byte_vectors: bool = False
) -> VectorTorso | ImageTorso | UserTorso:
    """Return the torso for observations of ``shape``: ``(N,)`` or, for images, ``(H, W, C)``.

    ``sees_byte_vectors`` is from a network's config. Raises UsageError if the convolutions of ``config`` do not fit, or
    its user's class does not make a torso.
    """
    if config.custom is not None:
        return UserTorso(config.custom)
    if len(shape) == 3:
        height, width, channels = shape
        return ImageTorso((height, width, channels), config)
    if config.conv_filters is not None:
        message = f"model.conv_filters see images, but an observation is a vector of {shape[0]} numbers"
        raise UsageError(message, "leave conv_filters out; fcnet_hiddens see vectors")
    return VectorTorso(shape[0], config, sees_byte_vectors)


def mlp(sizes: Sequence[int], activation: str, layer_norm: bool = False) -> nn.Sequential:
    """Return linear layers ``sizes[0] -> ... -> sizes[-1]``, each normalised or not, and followed by ``activation``."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        norm = [nn.LayerNorm(fan_out, NORM_EPSILON)] if layer_norm else []
        layers += [nn.Linear(fan_in, fan_out), *norm, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def default_filters(height: int, width: int) -> tuple[ConvFilter, ...]:
    """Return RLlib's convolutions for 84 and 42 pixels: the last kernel covers what the first two leave.

    >>> default_filters(84, 84)
    ((16, (8, 8), 4), (32, (4, 4), 2), (256, (11, 11), 1))
    """
    first: ConvFilter = (16, (4, 4), 2) if max(height, width) <= LARGEST_SMALL_IMAGE else (16, (8, 8), 4)
    second: ConvFilter = (32, (4, 4), 2)
    left = (-(-side // (first[2] * second[2])) for side in (height, width))
    return first, second, (256, (next(left), next(left)), 1)


def convolutions(
    shape: tuple[int, int, int], filters: Sequence[ConvFilter], activation: str, layer_norm: bool
) -> tuple[nn.Sequential, int]:
    """Return convolutions over images ``[B, C, H, W]`` of ``shape``, flattened, and their number of features.

    As in RLlib, all pad with zeros except the last, unless a filter says otherwise. With ``layer_norm`` each output
    ``[C, H, W]`` is normalised as a whole, and scaled by channel. Raises UsageError if a kernel that does not pad is
    larger than what it sees.
    """
    found = misfit(*shape[1:], filters)
    if found is not None:
        raise UsageError(*found)
    channels = shape[0]
    *sides, (height, width) = sides_of_layers(*shape[1:], filters)
    layers: list[nn.Module] = []
    for position, (out_channels, kernel, stride, *_) in enumerate(filters):
        padding = (0, 0)
        if pads(filters, position):
            before, padding = _padding(sides[position], kernel, stride)
            layers.append(before)
        norm = [nn.GroupNorm(1, out_channels, NORM_EPSILON)] if layer_norm else []
        layers += [nn.Conv2d(channels, out_channels, kernel, stride, padding), *norm, ACTIVATIONS[activation]()]
        channels = out_channels
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width


def _padding(sides: Sequence[int], kernel: tuple[int, int], stride: int) -> tuple[nn.Module, tuple[int, int]]:
    """Return the padding with which a stride leaves ``ceil(side / stride)``: a layer, and the convolution's own.

    If both ends get equally many zeros, the convolution pads, which copies nothing: a copy of 84 x 84 pixels takes as
    long as their convolution. Else the layer pads, with the odd row or column last. It exists in both cases, as the
    names of the weights count it.
    """
    down, right = (
        max((-(-side // stride) - 1) * stride + length - side, 0) for side, length in zip(sides, kernel, strict=True)
    )
    if down % 2 == 0 and right % 2 == 0:
        return nn.Identity(), (down // 2, right // 2)
    return nn.ZeroPad2d((right // 2, right - right // 2, down // 2, down - down // 2)), (0, 0)


def named_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return views of all on which a network's outputs depend: its parameters, and its floating-point buffers.

    A parameter with several names has its first one here. BatchNorm's counters of batches are left out.
    """
    named: dict[str, Tensor] = dict(network.named_parameters())
    for name, tensor in network.state_dict(keep_vars=True).items():
        if not isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
            named[name] = tensor
    return named


def shapes_of_network(make: Callable[[NetworkT], nn.Module], config: NetworkT) -> Shapes:
    """Return the shapes of the weights of a network of ``config``, which needs no memory for our own layers."""
    # A user's code may read numbers.
    with torch.device("meta") if config.torso.custom is None else nullcontext():
        return {name: tuple(weight.shape) for name, weight in named_weights(make(config)).items()}


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy ``weights`` with the names of ``named_weights``; raises RuntimeError for another network's."""
    sent = named_weights(network).keys()
    kept = {name: tensor for name, tensor in network.state_dict().items() if name not in sent}
    network.load_state_dict({**kept, **weights})


def load_arrays(network: nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy weights in their sent and saved form; raises as ``load_weights`` does."""
    load_weights(network, tensors_of(weights))


def tensors_of(arrays: Mapping[str, Array], prefix: str = "") -> dict[str, Tensor]:
    """Return copies of the arrays whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): torch.tensor(a) for name, a in arrays.items() if name.startswith(prefix)}


CONTRACT: Final = "it maps observations [B, ...] to features [B, num_features] (float32)"
TRIED_ROWS: Final = (2, 1)
"""Rows of the batches with which a torso is tried: code for one row may be wrong for two, and conversely."""
_COUNTER: Final = "num_batches_tracked"
"""The buffer of BatchNorm that is not a floating-point number; unused without ``momentum: None``."""
_FLOAT32: Final = "make them float32; weights are sent and saved as such"


class UserTorso(nn.Module):
    """Owns a user's module, which sees unchanged bytes, and all other observations as float32."""

    def __init__(self, config: CustomTorso) -> None:
        """Make and try it; raises UsageError if it is not a torso."""
        super().__init__()
        self.name = config.user_class.name
        self.own = _made(config)
        self.num_features = _num_features(self.own, self.name)
        batches = [_batch(config, num_rows) for num_rows in TRIED_ROWS]
        outputs = [self._tried(batch) for batch in batches]
        _check_weights(self)  # now, as lazy layers get their weights from the first batch
        self.depends_on_mode = self._differs_in_training(batches[0], outputs[0])
        """Whether it computes something else in training mode, as with dropout or batch normalisation."""

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``[B, num_features]`` of observations ``[B, ...]``."""
        return self.features(self.seen(obs))

    def seen(self, obs: Tensor) -> Tensor:
        """Return observations as the module sees them."""
        return obs if obs.dtype == torch.uint8 else obs.to(torch.float32)

    def features(self, seen: Tensor) -> Tensor:
        """Return features ``[B, num_features]`` of the result of ``seen``; raises TrialError for any other shape."""
        features: Tensor = self.own(seen)
        if features.shape != (seen.shape[0], self.num_features):  # len() would fix the rows of an exported batch
            raise TrialError(self._wrong_output(features, seen), CONTRACT)
        return features

    def _tried(self, batch: Tensor) -> Tensor:
        """Return the features of a batch in acting mode; raises UsageError if they are not valid."""
        self.eval()
        try:
            with torch.no_grad():
                features = self.own(batch)
        except Exception as error:
            message = (
                f"{CUSTOM_MODEL} {self.name} fails with observations {_shape_and_dtype(batch)}: {raised_by_user(error)}"
            )
            raise UsageError(message, "correct its forward; images are bytes, other observations float32") from error
        finally:
            self.train()
        if not isinstance(features, Tensor) or features.shape != (len(batch), self.num_features):
            raise UsageError(self._wrong_output(features, batch), CONTRACT)
        if not features.is_floating_point():
            raise UsageError(f"{CUSTOM_MODEL} {self.name} returns features of {features.dtype}", CONTRACT)
        if not features.isfinite().all():
            message = f"{CUSTOM_MODEL} {self.name} returns NaN or infinity for observations {_shape_and_dtype(batch)}"
            raise UsageError(message, "correct its first weights or its forward")
        return features

    def _wrong_output(self, features: object, batch: Tensor) -> str:
        found = f"{list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        return (
            f"{CUSTOM_MODEL} {self.name} returns {found} for observations {_shape_and_dtype(batch)}, "
            f"not [{len(batch)}, {self.num_features}] as its num_features says"
        )

    def _differs_in_training(self, batch: Tensor, features: Tensor) -> bool:
        """Return whether the module's features of ``batch`` differ in training mode; its mode does not change."""
        copy = deepcopy(self.own).train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return not torch.equal(copy(batch), features)
            except Exception as error:
                message = f"{CUSTOM_MODEL} {self.name} fails in training mode: {raised_by_user(error)}"
                raise UsageError(message, "correct its forward") from error


def refuse_modes(torso: nn.Module) -> None:
    """Raise UsageError for a torso that computes something else in training mode.

    PPO compares the probabilities of actions in training with the probabilities when they were taken, at first with the
    same weights. A difference that no update made would be clipped, and ends in noise.
    """
    if isinstance(torso, UserTorso) and torso.depends_on_mode:
        raise UsageError(
            f"{CUSTOM_MODEL} {torso.name} computes other features in training mode; this agent cannot learn from them",
            "leave out Dropout, and use LayerNorm or GroupNorm in place of BatchNorm",
        )


def _made(config: CustomTorso) -> nn.Module:
    """Return a new module of the user's class; raises UsageError if it is missing or cannot be made."""
    name, kwargs = config.user_class.name, config.user_class.kwargs
    prepare_imports((config.user_class.as_part(CUSTOM_MODEL).module,), config.modules)
    found = find_class(CUSTOM_MODEL, name, nn.Module, "torch.nn.Module")
    try:
        return found(config.observation_space, **deepcopy(dict(kwargs)))
    except RlexpError:
        raise
    except Exception as error:
        arguments = "".join(f", {argument}=..." for argument in kwargs)
        message = f"{CUSTOM_MODEL} {name} cannot be made: {raised_by_user(error)}"
        hint = f"correct it; it is made with def __init__(self, observation_space{arguments})"
        raise UsageError(message, hint) from error


def _num_features(module: nn.Module, name: str) -> int:
    given = getattr(module, "num_features", None)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        found = "has no num_features" if given is None else f"has num_features {given!r}"
        raise UsageError(
            f"{CUSTOM_MODEL} {name} {found}, the number of features that its forward returns",
            "set self.num_features to a whole number in __init__",
        )
    return given


def _check_weights(torso: UserTorso) -> None:
    """Raise UsageError for weights that cannot be sent to workers, as they are not float32."""
    for name, tensor in torso.own.state_dict(keep_vars=True).items():
        is_counter = name.rpartition(".")[2] == _COUNTER
        if isinstance(tensor, Tensor) and (tensor.dtype == torch.float32 or is_counter):
            continue
        if isinstance(tensor, nn.Parameter):
            raise UsageError(f"{CUSTOM_MODEL} {torso.name}: its parameter {name} is of {tensor.dtype}", _FLOAT32)
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        hint = "make it float32, or register a constant with persistent=False: every process makes its own"
        raise UsageError(f"{CUSTOM_MODEL} {torso.name}: its buffer {name} is of {kind}", hint)


def _batch(config: CustomTorso, num_rows: int) -> Tensor:
    """Return observations ``[num_rows, ...]`` within the bounds of their space, equal at each call."""
    space, rng = config.observation_space, np.random.default_rng(0)
    assert isinstance(space, gym.spaces.Box)
    shape = (num_rows, *space.shape)
    if space.dtype == np.uint8:
        return torch.from_numpy(rng.integers(space.low, space.high, shape, np.uint8, endpoint=True))
    return torch.from_numpy(rng.standard_normal(shape, np.float32).clip(space.low, space.high))


def _shape_and_dtype(batch: Tensor) -> str:
    """Return shape and type of a batch for a message: ``[2, 4] (float32)``."""
    return f"{list(batch.shape)} ({str(batch.dtype).removeprefix('torch.')})"
