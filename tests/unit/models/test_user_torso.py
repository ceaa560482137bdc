"""A torso of the user's own is tried when it is made, sees what it was promised, and keeps its weights' names."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import TrialError, UsageError
from rlexp.models import CustomTorso, QNetworkConfig, TorsoConfig, torso_config_of
from rlexp.models.dense import has_numpy_form, parameter_shapes
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import load_weights, make_torso, named_weights
from rlexp.models.user_torso import UserTorso
from tests.networks import PLAIN_HEAD
from tests.user_torsos import DENSE, NORMALISED, Dense

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float64)
IMAGE = gym.spaces.Box(0, 255, (6, 5, 3), np.uint8)
PROJECTED, BAD = "tests.user_torsos:Projected", "tests.user_torsos:Bad"


def torso_config(named: Any, space: gym.Space[Any] = VECTOR, **keys: Any) -> TorsoConfig:
    return torso_config_of(DQNConfig.model_validate({"model": {"custom_model": named}, **keys}), space)


def torso_of(named: Any, space: gym.Space[Any] = VECTOR, **keys: Any) -> UserTorso:
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
    torso = torso_of({DENSE: {"hiddens": [7]}}, space, **keys)
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
    own = torso_of(DENSE, space, **keys).own
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
        torso_of({BAD: {"how": how}})
    assert refused.value.message.startswith(f"config.model.custom_model {BAD}")
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")
    assert "\n" not in refused.value.message


def test_errors_name_the_line_of_the_user() -> None:
    with pytest.raises(UsageError, match=r"user_torsos\.py:\d+ in forward: RuntimeError: shapes do not fit"):
        torso_of({BAD: {"how": "raises"}})
    with pytest.raises(UsageError, match="unexpected keyword argument 'depth'"):
        torso_of({DENSE: {"depth": 3}})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.user_torsos:NoModule", "NoModule is not a torch.nn.Module"),
        ("tests.user_torsos:Dens", "has no Dens"),
        ("no_such_module:Dense", "module no_such_module cannot be imported"),
        ("os:system", "system is not a torch.nn.Module"),
    ],
)
def test_what_is_no_module_of_torch_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        torso_of(name)


def test_other_shapes_while_it_trains_are_errors_too() -> None:
    torso = torso_of(DENSE)
    torso.num_features = 9
    with pytest.raises(TrialError, match=r"returns \[2, 16\] for observations \[2, 3\] \(float32\), not \[2, 9\]"):
        torso(torch.zeros(2, 3))


def test_its_modes_are_noticed_and_trying_it_changes_nothing() -> None:
    assert not torso_of(DENSE).depends_on_mode
    assert not torso_of(PROJECTED).depends_on_mode
    assert torso_of({NORMALISED: {"dropout": 0.5}}).depends_on_mode
    torso = torso_of(NORMALISED)
    assert torso.depends_on_mode
    assert torso.training
    assert torso.own.get_buffer("norm.running_mean").tolist() == [0.0] * 3
    assert torso.own.get_buffer("norm.num_batches_tracked") == 0


def test_trying_it_draws_no_random_numbers() -> None:
    drawn = []
    for named in (DENSE, None):
        torch.manual_seed(0)
        if named:
            torso_of(named)
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
