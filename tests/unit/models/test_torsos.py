"""

A torso of the user's own is tried when it is made, sees what it was promised, and keeps its weights' names.
"""

from __future__ import annotations

import pickle
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import TrialError, UsageError
from rlexp.models.network_config import (
    CustomTorso,
    QNetworkConfig,
    TorsoConfig,
    has_numpy_form,
    parameter_shapes,
    torso_config_of,
)
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import UserTorso, default_filters, load_weights, make_torso, named_weights
from tests.lab.dqn import PLAIN_HEAD
from tests.lab.user_torsos import DENSE, NORMALISED, Dense


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


def test_a_filter_says_whether_it_pads() -> None:
    filters: tuple[ConvFilter, ...] = ((4, (8, 8), 4, "valid"), (6, (4, 4), 2), (8, (3, 3), 1, "same"))
    assert sizes_inside((42, 84, 3), torso_of(conv_filters=filters)) == [(4, 9, 20), (6, 5, 10), (8, 5, 10)]
    assert make_torso((42, 84, 3), torso_of(conv_filters=filters)).num_features == 8 * 5 * 10


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


VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float64)
IMAGE = gym.spaces.Box(0, 255, (6, 5, 3), np.uint8)
PROJECTED, BAD = "tests.lab.user_torsos:Projected", "tests.lab.user_torsos:Bad"


def torso_config(named: Any, space: gym.Space[Any] = VECTOR, **keys: Any) -> TorsoConfig:
    return torso_config_of(DQNConfig.model_validate({"model": {"custom_model": named}, **keys}), space)


def users_torso(named: Any, space: gym.Space[Any] = VECTOR, **keys: Any) -> UserTorso:
    assert space.shape is not None
    made = make_torso(space.shape, torso_config(named, space, **keys))
    assert isinstance(made, UserTorso)
    return made


def network_of(named: Any) -> QNetwork:
    return QNetwork(QNetworkConfig((3,), 2, torso_config(named), PLAIN_HEAD))


@pytest.mark.parametrize(
    ("space", "keys", "sent", "seen"),
    [
        (VECTOR, {}, torch.float64, torch.float32),
        (VECTOR, {"observation_filter": "MeanStdFilter"}, torch.float32, torch.float32),
        (IMAGE, {}, torch.uint8, torch.uint8),
        (gym.spaces.Box(0, 255, (4,), np.uint8), {}, torch.uint8, torch.uint8),
        (gym.spaces.Box(0, 9, (4,), np.int64), {}, torch.int64, torch.float32),
        (gym.spaces.MultiBinary(4), {}, torch.int8, torch.float32),
    ],
    ids=["float64", "standardised", "image", "ram", "int64", "bits"],
)
def test_bytes_arrive_as_bytes_and_all_else_as_float32(
    space: gym.Space[Any], keys: dict[str, Any], sent: torch.dtype, seen: torch.dtype
) -> None:
    torso = users_torso({DENSE: {"hiddens": [7]}}, space, **keys)
    assert space.shape is not None
    assert torso(torch.zeros((5, *space.shape), dtype=sent)).shape == (5, 7)
    assert isinstance(torso.own, Dense)
    assert torso.own.seen.dtype == seen
    assert torso.own.seen.shape == (5, *space.shape)
    assert str(torso.own.space.dtype) == str(seen).removeprefix("torch.")


@pytest.mark.parametrize(
    ("space", "keys", "low", "high"),
    [(VECTOR, {}, -1, 1), (VECTOR, {"observation_filter": "MeanStdFilter"}, -np.inf, np.inf), (IMAGE, {}, 0, 255)],
)
def test_the_space_has_the_bounds_of_what_arrives(
    space: gym.Space[Any], keys: dict[str, Any], low: float, high: float
) -> None:
    own = users_torso(DENSE, space, **keys).own
    assert isinstance(own, Dense)
    assert (own.space.low.min(), own.space.high.max()) == (low, high)


@pytest.mark.parametrize(
    ("how", "message", "hint"),
    [
        ("raises when made", "cannot be made: ", "def __init__(self, observation_space, how=...)"),
        ("no size", "has no num_features", "set self.num_features"),
        ("size is text", "has num_features '4'", "set self.num_features"),
        ("wrong size", "returns [2, 4] for observations [2, 3] (float32), not [2, 5]", "it maps observations"),
        ("tuple", "returns tuple for observations [2, 3]", "it maps observations"),
        ("squeezes", "returns [4] for observations [1, 3] (float32), not [1, 4]", "it maps observations"),
        ("raises", "RuntimeError: shapes do not fit", "correct its forward"),
        ("nan", "returns NaN or infinity for observations [2, 3]", "correct its first weights"),
        ("integers", "returns features of torch.int64", "it maps observations"),
        ("double", "its parameter linear.weight is of torch.float64", "make them float32"),
        ("integer buffer", "its buffer mask is of torch.int64", "persistent=False"),
        ("fails while it learns", "fails in training mode: ", "correct its forward"),
    ],
)
def test_what_is_no_torso_is_refused_with_the_reason(how: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        users_torso({BAD: {"how": how}})
    assert refused.value.message.startswith(f"config.model.custom_model {BAD}")
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")
    assert "\n" not in refused.value.message


def test_errors_name_the_line_of_the_user() -> None:
    with pytest.raises(UsageError, match=r"user_torsos\.py:\d+ in forward: RuntimeError: shapes do not fit"):
        users_torso({BAD: {"how": "raises"}})
    with pytest.raises(UsageError, match="unexpected keyword argument 'depth'"):
        users_torso({DENSE: {"depth": 3}})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.lab.user_torsos:NoModule", "NoModule is not a torch.nn.Module"),
        ("tests.lab.user_torsos:Dens", "has no Dens"),
        ("no_such_module:Dense", "module no_such_module cannot be imported"),
        ("os:system", "system is not a torch.nn.Module"),
    ],
)
def test_what_is_no_module_of_torch_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        users_torso(name)


def test_other_shapes_while_it_trains_are_errors_too() -> None:
    torso = users_torso(DENSE)
    torso.num_features = 9
    with pytest.raises(TrialError, match=r"returns \[2, 16\] for observations \[2, 3\] \(float32\), not \[2, 9\]"):
        torso(torch.zeros(2, 3))


def test_its_modes_are_noticed_and_trying_it_changes_nothing() -> None:
    assert not users_torso(DENSE).depends_on_mode
    assert not users_torso(PROJECTED).depends_on_mode
    assert users_torso({NORMALISED: {"dropout": 0.5}}).depends_on_mode
    torso = users_torso(NORMALISED)
    assert torso.depends_on_mode
    assert torso.training
    assert torso.own.get_buffer("norm.running_mean").tolist() == [0.0] * 3
    assert torso.own.get_buffer("norm.num_batches_tracked") == 0


def test_trying_it_draws_no_random_numbers() -> None:
    drawn = []
    for named in (DENSE, None):
        torch.manual_seed(0)
        if named:
            users_torso(named)
        else:
            Dense(VECTOR)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]


def test_config_is_sent_between_processes_and_has_no_numpy_form() -> None:
    config = QNetworkConfig((3,), 2, torso_config(DENSE), PLAIN_HEAD)
    sent = pickle.loads(pickle.dumps(config))  # noqa: S301  # ours
    assert isinstance(sent.torso.custom, CustomTorso)
    assert sent.torso.custom.user_class.name == DENSE
    assert not has_numpy_form(sent)


@pytest.mark.parametrize("named", [DENSE, NORMALISED, PROJECTED])
def test_weights_are_parameters_and_buffers_of_numbers(named: str) -> None:
    network, other = network_of(named), network_of(named)
    weights = named_weights(network)
    assert parameter_shapes(QNetworkConfig((3,), 2, torso_config(named), PLAIN_HEAD)) == {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    assert ("torso.own.norm.running_var" in weights) == (named == NORMALISED)
    assert ("torso.own.projection" in weights) == (named == PROJECTED)
    obs = torch.randn(4, 3)
    assert not torch.equal(network.eval()(obs), other.eval()(obs))
    load_weights(other, {name: weight.detach().clone() for name, weight in weights.items()})
    assert torch.equal(network(obs), other(obs))


@pytest.mark.parametrize("change", ["missing", "additional", "shape"])
def test_weights_of_another_network_are_refused(change: str) -> None:
    network = network_of(PROJECTED)
    weights = {name: weight.detach() for name, weight in named_weights(network).items()}
    if change == "missing":
        del weights["torso.own.mix.weight"]
    elif change == "additional":
        weights["torso.own.other"] = torch.zeros(1)
    else:
        weights["torso.own.projection"] = torch.zeros(1)
    with pytest.raises(RuntimeError):
        load_weights(network, weights)


def test_a_module_of_a_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torso_in_a_folder.py").write_text(
        "from torch import nn\n\n\nclass Own(nn.Linear):\n    num_features = 6\n\n"
        "    def __init__(self, observation_space):\n        super().__init__(observation_space.shape[0], 6)\n"
    )
    monkeypatch.setattr("sys.path", list(sys.path))
    config = DQNConfig.model_validate({"model": {"custom_model": "torso_in_a_folder:Own"}})
    torso = make_torso((3,), torso_config_of(config, VECTOR, UserModules(folders=(str(tmp_path),))))
    assert isinstance(torso, UserTorso)
    assert isinstance(torso.own, nn.Linear)
