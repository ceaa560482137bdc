"""The keys of ``config.model``: the network between the observation and the heads of an agent; which filters fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Final, Literal

from rlexp.config.keys.fields import RLEXP_ONLY, ConvFilter, ConvFilters, Count, KeyGroup, LayerSizes
from rlexp.config.keys.user_code import UserClass

ATARI_DIM = 84
"""Side in pixels of scaled Atari frames, as in Mnih et al. 2015."""

Activation = Literal["tanh", "relu", "elu", "swish", "linear"]

CUSTOM_MODEL: Final = "config.model.custom_model"
"""The key of a user's network, as messages name it."""
LAYER_KEYS: Final = (
    *("fcnet_hiddens", "fcnet_activation", "conv_filters", "conv_activation"),
    *("post_fcnet_hiddens", "post_fcnet_activation", "layer_norm", "zero_mean"),
)
"""The keys that describe the layers which a ``custom_model`` replaces."""
LSTM_KEYS: Final = tuple(
    f"model.{key}" for key in ("lstm_cell_size", "max_seq_len", "lstm_use_prev_action", "lstm_use_prev_reward")
)
"""The keys of an LSTM, below ``config``."""


def weights_between(sizes: Sequence[int]) -> int:
    """Return the weights of fully connected layers of these sizes, the input's first."""
    return sum(fan_in * fan_out for fan_in, fan_out in pairwise(sizes))


class ModelConfig(KeyGroup):
    """The network between the observation and the heads of an agent."""

    custom_model: UserClass | None = None
    """A class of your own in place of the layers before the heads: ``package.module:Class``, with keyword arguments
    ``{package.module:Class: {argument: value}}``.

    It is a ``torch.nn.Module`` that takes the observation space and the arguments, has ``num_features``, and maps
    observations [B, ...] to features [B, num_features]. Images are bytes, other observations float32.
    """

    fcnet_hiddens: LayerSizes = (256, 256)
    """Sizes of the fully connected layers for vector observations. ``[]``: none. Images use ``conv_filters``."""

    fcnet_activation: Activation = "tanh"
    """Activation after each of the ``fcnet_hiddens`` layers."""

    conv_filters: ConvFilters = None
    """Convolutions for images: a list of [channels, kernel, stride]. A kernel is a number or [height, width].

    All except the last pad with zeros. A fourth item changes that: ``same`` pads, ``valid`` does not. Null: [16, 8, 4]
    ([16, 4, 2] up to 42 pixels), then [32, 4, 2], then 256 channels whose kernel covers the remaining image.
    """

    conv_activation: Activation = "relu"
    """Activation after each of the ``conv_filters``."""

    post_fcnet_hiddens: LayerSizes = ()
    """Sizes of fully connected layers after ``conv_filters`` or ``fcnet_hiddens``. ``[]``: none."""

    post_fcnet_activation: Activation = "relu"
    """Activation after each of the ``post_fcnet_hiddens`` layers."""

    layer_norm: Annotated[bool, RLEXP_ONLY] = False
    """Normalise the outputs of each of these layers before its activation (Ba et al. 2016): for a fully connected layer
    per observation, for a convolution over all channels and pixels of an image. The heads are not normalised."""

    dim: Count | None = None
    """Height and width in pixels to which images (bytes, [height, width, channels]) are scaled.

    Null: 84 for Atari frames, other images keep their size. With ``preprocessor_pref: null`` all images keep it.
    """

    grayscale: bool = False
    """Convert frames to grey with ``preprocessor_pref: rllib``. ``deepmind`` always does this for Atari games."""

    framestack: bool = True
    """Stack the last 4 frames of an Atari game with ``preprocessor_pref: deepmind``. False: only the last frame."""

    zero_mean: bool = True
    """Scale pixels to -1 to 1 with ``preprocessor_pref: rllib``. False: 0 to 1."""

    custom_preprocessor: UserClass | None = None
    """A class that turns observations into what the network sees: ``package.module:Class``, or
    ``{package.module:Class: {argument: value}}``, derived from ``rlexp.envs.Preprocessor``. It gets the env's own
    observations and replaces ``preprocessor_pref``. Null: none."""

    @property
    def dense_sizes(self) -> tuple[int, ...]:
        """The sizes of the fully connected layers."""
        return (*self.fcnet_hiddens, *self.post_fcnet_hiddens)

    @property
    def least_weights(self) -> int:
        """Weights of its layers without the first one, and with images of one channel."""
        filters = self.conv_filters or ()
        channels = (1, *(each[0] for each in filters))
        return weights_between(self.dense_sizes) + sum(
            before * after * kernel[0] * kernel[1]
            for (before, after), (_, kernel, *_) in zip(pairwise(channels), filters, strict=True)
        )

    @property
    def layer_outputs(self) -> int:
        """Outputs of its fully connected layers for one row, and of the gates of an LSTM."""
        return sum(self.dense_sizes)

    @property
    def atari_dim(self) -> int:
        """``dim`` for Atari frames."""
        return ATARI_DIM if self.dim is None else self.dim


class RecurrentModelConfig(ModelConfig):
    """A network that may have an LSTM after these layers."""

    use_lstm: bool = False
    """Add an LSTM between the other layers and the heads, which remembers what was seen since the episode's start.

    Policy and value function then share all layers. Minibatches are whole sequences, see ``max_seq_len``.
    """

    lstm_cell_size: Count = 256
    """Outputs of the LSTM."""

    max_seq_len: Count = 20
    """Most steps through which the LSTM learns. A fragment is cut into such sequences, and at the end of an
    episode; each begins with the state that the worker had there."""

    lstm_use_prev_action: bool = False
    """Let the LSTM also see the action of the step before: one number for each value of a choice, 1 for the chosen one.
    All are 0 at an episode's start."""

    lstm_use_prev_reward: bool = False
    """Let the LSTM also see the reward of the step before, as the env gave it. It is 0 at an episode's start."""

    @property
    def least_weights(self) -> int:
        return super().least_weights + (4 * self.lstm_cell_size**2 if self.use_lstm else 0)

    @property
    def layer_outputs(self) -> int:
        return super().layer_outputs + (4 * self.lstm_cell_size if self.use_lstm else 0)

    @property
    def sequence_length(self) -> int | None:
        """``max_seq_len``; None without an LSTM."""
        return self.max_seq_len if self.use_lstm else None


class ActorCriticModelConfig(RecurrentModelConfig):
    """The network of an agent with a policy and a value function."""

    vf_share_layers: bool = False
    """Whether the value function shares the layers of the policy."""

    free_log_std: bool = False
    """Learn the standard deviation of continuous actions as parameters that do not depend on the observation."""


def pads(filters: Sequence[ConvFilter], position: int) -> bool:
    """Return whether a convolution pads: as its fourth item says, else all except the last do."""
    layer = filters[position]
    return layer[3] == "same" if len(layer) == 4 else position < len(filters) - 1


def sides_of_layers(height: int, width: int, filters: Sequence[ConvFilter]) -> Iterator[tuple[int, int]]:
    """Yield height and width of what each convolution sees, and of what the last one returns.

    >>> list(sides_of_layers(84, 84, ((16, (8, 8), 4), (32, (4, 4), 2), (256, (11, 11), 1))))
    [(84, 84), (21, 21), (11, 11), (1, 1)]
    """
    for position, layer in enumerate(filters):
        yield height, width
        lost = (0, 0) if pads(filters, position) else (layer[1][0] - 1, layer[1][1] - 1)
        height, width = (-(-(side - less) // layer[2]) for side, less in zip((height, width), lost, strict=True))
    yield height, width


def misfit(height: int, width: int, filters: Sequence[ConvFilter]) -> tuple[str, str] | None:
    """Return why ``filters`` do not fit images of a size, and a hint; None if they do."""
    for position, seen in enumerate(sides_of_layers(height, width, filters)):
        if position == len(filters) or pads(filters, position):
            continue
        kernel = filters[position][1]
        if kernel[0] > seen[0] or kernel[1] > seen[1]:
            message = (
                f"model.conv_filters do not fit images of {height}x{width} pixels: kernel {position + 1} is "
                f"{kernel[0]}x{kernel[1]}, but sees {seen[0]}x{seen[1]} pixels"
            )
            return message, f"make it [{seen[0]}, {seen[1]}] or smaller, or leave conv_filters out"
    return None
