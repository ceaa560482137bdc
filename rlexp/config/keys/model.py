"""The keys of ``config.model``: the network between the observation and the heads of an agent."""

from __future__ import annotations

from typing import Literal

from rlexp.config.keys.fields import Count, KeyGroup, LayerSizes
from rlexp.config.keys.structured_fields import ConvFilters

ATARI_DIM = 84
"""Side in pixels of scaled Atari frames, as in Mnih et al. 2015."""

Activation = Literal["tanh", "relu", "elu", "swish", "linear"]


class ModelConfig(KeyGroup):
    """The network between the observation and the heads of an agent."""

    fcnet_hiddens: LayerSizes = (256, 256)
    """Sizes of the fully connected layers for vector observations. ``[]``: none. Images use ``conv_filters``."""

    fcnet_activation: Activation = "tanh"
    """Activation after each of the ``fcnet_hiddens`` layers."""

    conv_filters: ConvFilters = None
    """Convolutions for images: a list of [channels, kernel, stride]. A kernel is a number or [height, width].

    All but the last pad with zeros. Null: [16, 8, 4] ([16, 4, 2] up to 42 pixels), then [32, 4, 2], then 256 channels
    whose kernel covers what is left of the image.
    """

    conv_activation: Activation = "relu"
    """Activation after each of the ``conv_filters``."""

    post_fcnet_hiddens: LayerSizes = ()
    """Sizes of fully connected layers after ``conv_filters`` or ``fcnet_hiddens``. ``[]``: none."""

    post_fcnet_activation: Activation = "relu"
    """Activation after each of the ``post_fcnet_hiddens`` layers."""

    dim: Count | None = None
    """Height and width in pixels that images (bytes, [height, width, channels]) are scaled to.

    Null: 84 for Atari frames, other images keep their size. With ``preprocessor_pref: null`` all images keep it.
    """

    grayscale: bool = False
    """With ``preprocessor_pref: rllib``: convert frames to grey. ``deepmind`` always does this for Atari games."""

    framestack: bool = True
    """With ``preprocessor_pref: deepmind``: stack the last 4 frames of an Atari game. False: only the last frame."""

    zero_mean: bool = True
    """With ``preprocessor_pref: rllib``: scale pixels to -1 to 1. False: 0 to 1."""

    @property
    def atari_dim(self) -> int:
        """``dim`` for Atari frames."""
        return ATARI_DIM if self.dim is None else self.dim


class ActorCriticModelConfig(ModelConfig):
    """The network of an agent with a policy and a value function."""

    vf_share_layers: bool = False
    """Whether the value function shares the layers of the policy."""

    free_log_std: bool = False
    """Learn the standard deviation of continuous actions as parameters that do not depend on the observation."""
