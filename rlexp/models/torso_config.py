"""TorsoConfig: the layers between the observation and the heads, as a config asks for them."""

from __future__ import annotations

from dataclasses import dataclass

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.fields import ConvFilter

BYTE_CENTER = 128
"""The middle of a byte's range: bytes x become (x - 128) / 128 where they are to lie around 0."""


@dataclass(frozen=True)
class TorsoConfig:
    """The layers between the observation and the heads; the words are those of the keys under ``config.model``."""

    fcnet_hiddens: tuple[int, ...]
    """Sizes of the layers that see a vector."""
    fcnet_activation: str
    conv_filters: tuple[ConvFilter, ...] | None
    """The convolutions that see an image; None: those that RLlib had for its size."""
    conv_activation: str
    post_fcnet_hiddens: tuple[int, ...]
    """Sizes of the layers behind either."""
    post_fcnet_activation: str
    zero_mean: bool
    """Whether the bytes of an image are scaled to -1 .. 1 instead of 0 .. 1."""


def torso_config_of(config: CommonConfig) -> TorsoConfig:
    """Return the torso that ``config`` describes."""
    model = config.model
    return TorsoConfig(
        fcnet_hiddens=tuple(model.fcnet_hiddens),
        fcnet_activation=model.fcnet_activation,
        conv_filters=model.conv_filters,
        conv_activation=model.conv_activation,
        post_fcnet_hiddens=tuple(model.post_fcnet_hiddens),
        post_fcnet_activation=model.post_fcnet_activation,
        zero_mean=config.preprocessor_pref == "rllib" and model.zero_mean,
    )
