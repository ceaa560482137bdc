"""The keys of ``config.model``: the network between the observation and an agent's heads."""

from __future__ import annotations

from typing import Literal

from rlexp.config.fields import Count, KeyGroup, LayerSizes
from rlexp.config.structured_fields import ConvFilters

ATARI_DIM = 84
"""Side in pixels of scaled Atari frames, as in Mnih et al. 2015."""

Activation = Literal["tanh", "relu", "elu", "swish", "linear"]


class ModelConfig(KeyGroup):
    """The network between the observation and an agent's heads."""

    fcnet_hiddens: LayerSizes = (256, 256)
    """Sizes of the fully connected layers that see a flat observation; ``[]`` for none. Images have ``conv_filters``
    instead."""

    fcnet_activation: Activation = "tanh"
    """Activation after each of the ``fcnet_hiddens`` layers."""

    conv_filters: ConvFilters = None
    """Convolutions that see an image: a list of [channels, kernel, stride], a kernel being one side or [height, width].

    All but the last pad with zeros. Null: [16, 8, 4], or [16, 4, 2] up to 42 pixels, [32, 4, 2] and, with the whole of
    what is left for a kernel, 256 channels.
    """

    conv_activation: Activation = "relu"
    """Activation after each of the ``conv_filters``."""

    post_fcnet_hiddens: LayerSizes = ()
    """Sizes of fully connected layers behind ``conv_filters`` or ``fcnet_hiddens``; ``[]`` for none."""

    post_fcnet_activation: Activation = "relu"
    """Activation after each of the ``post_fcnet_hiddens`` layers."""

    dim: Count | None = None
    """Height and width in pixels that images (bytes, [height, width, channels]) are scaled to.

    Null: 84 for Atari frames, other images keep their size. With ``preprocessor_pref: null`` all images keep it.
    """

    grayscale: bool = False
    """With ``preprocessor_pref: rllib``: make frames grey. ``deepmind`` always does so with Atari."""

    framestack: bool = True
    """With ``preprocessor_pref: deepmind``: show the last 4 frames of an Atari game, not only the last."""

    zero_mean: bool = True
    """With ``preprocessor_pref: rllib``: pixels lie between -1 and 1; else between 0 and 1."""

    @property
    def atari_dim(self) -> int:
        """``dim`` for Atari frames."""
        return ATARI_DIM if self.dim is None else self.dim


class ActorCriticModelConfig(ModelConfig):
    """The network of an agent with a policy and a value function."""

    vf_share_layers: bool = False
    """Let the value function share the layers of the policy."""

    free_log_std: bool = False
    """Learn the deviation of continuous actions as parameters, whatever the observation."""
