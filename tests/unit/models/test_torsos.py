from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.model import ModelConfig
from rlexp.errors import UsageError
from rlexp.models import TorsoConfig, torso_config_of
from rlexp.models.torsos import default_filters, make_torso


def torso_of(preprocessor_pref: Any = "deepmind", **keys: Any) -> TorsoConfig:
    return torso_config_of(DQNConfig(preprocessor_pref=preprocessor_pref, model=ModelConfig(**keys)))


def sizes_inside(shape: tuple[int, int, int], config: TorsoConfig) -> list[tuple[int, ...]]:
    """Return what each convolution gives, ``(C, H, W)``."""
    torso = make_torso(shape, config)
    seen: list[tuple[int, ...]] = []
    for layer in torso.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, given, gives: seen.append(tuple(gives.shape[1:])))
    torso(torch.zeros((1, *shape), dtype=torch.uint8))
    return seen


@pytest.mark.parametrize(
    ("side", "sizes"),
    [(84, [(16, 21, 21), (32, 11, 11), (256, 1, 1)]), (42, [(16, 21, 21), (32, 11, 11), (256, 1, 1)])],
)
def test_the_default_convolutions_are_those_of_rllib(side: int, sizes: list[tuple[int, ...]]) -> None:
    assert sizes_inside((side, side, 4), torso_of()) == sizes
    assert default_filters(side, side)[2] == (256, (11, 11), 1)


@pytest.mark.parametrize("shape", [(1, 1, 1), (10, 10, 3), (42, 43, 1), (50, 7, 3), (105, 80, 3)])
def test_the_default_convolutions_leave_one_pixel_of_every_image(shape: tuple[int, int, int]) -> None:
    assert sizes_inside(shape, torso_of())[-1] == (256, 1, 1)


def test_filters_of_the_users_own_pad_but_the_last() -> None:
    filters = ((4, (3, 5), 2), (6, (2, 2), 3), (8, (2, 1), 1))
    assert sizes_inside((20, 31, 3), torso_of(conv_filters=filters)) == [(4, 10, 16), (6, 4, 6), (8, 3, 6)]
    assert make_torso((20, 31, 3), torso_of(conv_filters=filters)).num_features == 8 * 3 * 6


def test_padding_is_even_with_the_odd_row_at_the_end() -> None:
    # A kernel of 4 and a stride of 2 over 5 pixels leave 3, with one zero before and two behind.
    torso = make_torso((5, 5, 1), torso_of(conv_filters=((1, (4, 4), 2), (1, (1, 1), 1)), conv_activation="linear"))
    for layer in torso.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.ones_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    counts = torso(torch.full((1, 5, 5, 1), 255, dtype=torch.uint8)).reshape(3, 3)
    # Of 4 pixels under the kernel 3, 4 and 2 are real.
    expected = torch.outer(torch.tensor([3.0, 4.0, 2.0]), torch.tensor([3.0, 4.0, 2.0]))
    assert torch.allclose(counts, expected, atol=1e-5)


@pytest.mark.parametrize("filters", [((3, (8, 8), 4), (2, (1, 1), 1)), ((3, (4, 8), 2), (2, (1, 1), 1))])
@pytest.mark.parametrize("side", [84, 85])
def test_padding_by_a_convolution_is_that_of_a_layer(filters: tuple[ConvFilter, ...], side: int) -> None:
    torso = make_torso((side, 84, 4), torso_of(conv_filters=filters, conv_activation="linear"))
    images = torch.randint(256, (2, side, 84, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first, last = (layer for layer in torso.modules() if isinstance(layer, nn.Conv2d))
    lengths, stride = filters[0][1], filters[0][2]
    zeros = [max((-(-size // stride) - 1) * stride + k - size, 0) for size, k in zip((side, 84), lengths, strict=True)]
    padded = nn.functional.pad(torso.seen(images), (zeros[1] // 2, -(-zeros[1] // 2), zeros[0] // 2, -(-zeros[0] // 2)))
    outputs = nn.functional.conv2d(padded, first.weight, first.bias, stride)
    assert torch.allclose(torso(images), last(outputs).flatten(1), atol=1e-4)


def test_the_names_of_weights_do_not_depend_on_who_pads() -> None:
    # Of 84 pixels the first convolution pads itself, of 85 a layer does; checkpoints know weights by their names.
    even, odd = (make_torso((side, side, 1), torso_of()).state_dict() for side in (84, 85))
    assert list(even) == list(odd)
    assert [name for name in even if name.endswith("weight")] == [f"convolutions.{n}.weight" for n in (1, 4, 6)]


@pytest.mark.parametrize("filters", [((8, (3, 3), 2), (8, (6, 6), 1)), ((8, (9, 2), 1),), ((8, (2, 9), 1),)])
def test_filters_that_do_not_fit_are_refused_with_the_size_that_would(filters: tuple[ConvFilter, ...]) -> None:
    with pytest.raises(UsageError, match="do not fit images of 8x8 pixels") as caught:
        make_torso((8, 8, 3), torso_of(conv_filters=filters))
    assert caught.value.hint is not None
    left = 4 if len(filters) == 2 else 8
    assert f"[{left}, {left}]" in caught.value.hint


def test_filters_for_a_vector_are_refused() -> None:
    with pytest.raises(UsageError, match="vector of 3 numbers"):
        make_torso((3,), torso_of(conv_filters=((8, (2, 2), 1),)))


@pytest.mark.parametrize("shape", [(3,), (10, 10, 3)])
def test_layers_behind_have_the_sizes_and_the_activation_asked_for(shape: tuple[int, ...]) -> None:
    torso = make_torso(shape, torso_of(fcnet_hiddens=(6,), post_fcnet_hiddens=(5, 4), post_fcnet_activation="elu"))
    layers = [layer for layer in torso.modules() if isinstance(layer, nn.Linear | nn.ELU)]
    assert [type(layer) for layer in layers][-4:] == [nn.Linear, nn.ELU, nn.Linear, nn.ELU]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in linear][-2:] == [5, 4]
    assert all(before.out_features == after.in_features for before, after in pairwise(linear))
    assert torso.num_features == 4
    assert torso(torch.zeros((2, *shape))).shape == (2, 4)


@pytest.mark.parametrize(
    ("preprocessor_pref", "zero_mean", "low", "high"),
    [
        ("rllib", True, -1.0, 127 / 128),
        ("rllib", False, 0.0, 1.0),
        ("deepmind", True, 0.0, 1.0),
        (None, True, 0.0, 1.0),
    ],
)
def test_bytes_are_scaled(preprocessor_pref: Any, zero_mean: bool, low: float, high: float) -> None:
    config = torso_of(preprocessor_pref, zero_mean=zero_mean, conv_filters=((1, (1, 1), 1),), conv_activation="linear")
    torso = make_torso((1, 2, 1), config)
    convolution = next(layer for layer in torso.modules() if isinstance(layer, nn.Conv2d))
    nn.init.ones_(convolution.weight)
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    assert torso(torch.tensor([[[[0], [255]]]], dtype=torch.uint8)).tolist() == [pytest.approx([low, high])]
    assert torso(torch.tensor([[[[0.5], [-3.0]]]])).tolist() == [pytest.approx([0.5, -3.0])], "other numbers stay"


def test_channels_rows_and_columns_are_not_mixed_up() -> None:
    config = torso_of(conv_filters=((1, (1, 1), 1),), conv_activation="linear")
    torso = make_torso((2, 3, 2), config)
    convolution = next(layer for layer in torso.modules() if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        convolution.weight[0, :, 0, 0] = torch.tensor([0.0, 1.0])
        assert convolution.bias is not None
        convolution.bias.zero_()
    image = torch.arange(12, dtype=torch.float32).reshape(1, 2, 3, 2)
    assert torso(image).tolist() == [image[0, :, :, 1].reshape(-1).tolist()]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("zero_mean", [False, True])
def test_images_kept_by_frames_are_seen_in_the_layout_of_the_weights(dtype: Any, zero_mean: bool) -> None:
    torso = make_torso((84, 84, 4), torso_of("rllib", zero_mean=zero_mean))
    frames = torch.from_numpy(np.random.default_rng(0).integers(256, size=(2, 4, 84, 84)).astype(dtype))
    seen = torso.seen(frames.permute(0, 2, 3, 1))
    assert seen.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(seen, torso.seen(frames.permute(0, 2, 3, 1).contiguous()))
    assert torch.equal(torso.features(seen), torso(frames.permute(0, 2, 3, 1)))
