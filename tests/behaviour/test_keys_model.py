"""The keys of ``config.model`` that shape the torso; each test fails if its key is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.players import q_network_config
from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.envs import env_config_of, make_vector_env
from rlexp.errors import UsageError
from rlexp.models.networks import QNetwork
from tests.envs import COUNTING_ENV, PIXEL_ENV

FILTERS = ((4, (4, 4), 2), (5, (5, 5), 1))
"""For the 10 pixels of a PixelEnv."""


def network_for(env: str, preprocessor_pref: Literal["deepmind", "rllib"] | None = None, **model: Any) -> QNetwork:
    """Return the network that an agent's learner and policies have, with weights that depend on their shapes only."""
    config = DQNConfig(preprocessor_pref=preprocessor_pref, hiddens=(8,), model=ModelConfig(**model))
    vector = make_vector_env(env_config_of(env, config, UserModules()), 1)
    torch.manual_seed(0)
    network = QNetwork(q_network_config(config, vector.single_observation_space, vector.single_action_space))
    vector.close()
    return network.eval()


def shapes(network: QNetwork) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for name, weight in network.torso.named_parameters() if "weight" in name]


def answers(network: QNetwork, image: Tensor) -> list[float]:
    with torch.no_grad():
        values: list[float] = network.torso(image)[0].tolist()
    return values


def picture() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 10, 10, 3), dtype=np.uint8))


@pytest.mark.key("model.conv_filters")
def test_conv_filters_are_the_convolutions() -> None:
    assert shapes(network_for(PIXEL_ENV, conv_filters=FILTERS)) == [(4, 3, 4, 4), (5, 4, 5, 5)]
    assert shapes(network_for(PIXEL_ENV)) == [(16, 3, 4, 4), (32, 16, 4, 4), (256, 32, 3, 3)]


@pytest.mark.key("model.conv_filters")
def test_conv_filters_that_do_not_fit_are_refused_when_the_agent_is_made() -> None:
    config = DQNConfig(preprocessor_pref=None, model=ModelConfig(conv_filters=((4, (11, 11), 1),)))
    with pytest.raises(UsageError, match="do not fit images of 10x10"):
        DQNAgent(PIXEL_ENV, config, InlineTaskPool(), seed=0)


@pytest.mark.key("model.conv_activation")
def test_the_conv_activation_acts_on_the_last_layer() -> None:
    lowest = {
        activation: min(answers(network_for(PIXEL_ENV, conv_filters=FILTERS, conv_activation=activation), picture()))
        for activation in ("relu", "linear", "elu")
    }
    assert lowest["relu"] >= 0.0
    assert lowest["linear"] < lowest["elu"] < 0.0


@pytest.mark.key("model.post_fcnet_hiddens")
@pytest.mark.parametrize(
    ("env", "model"), [(PIXEL_ENV, {"conv_filters": FILTERS}), (COUNTING_ENV, {"fcnet_hiddens": (5,)})]
)
def test_post_fcnet_hiddens_are_layers_behind_the_torso(env: str, model: Mapping[str, Any]) -> None:
    without, with_two = network_for(env, **model), network_for(env, post_fcnet_hiddens=(7, 6), **model)
    assert [shape[0] for shape in shapes(with_two)] == [*(shape[0] for shape in shapes(without)), 7, 6]


@pytest.mark.key("model.post_fcnet_activation")
def test_the_post_fcnet_activation_acts_on_the_last_layer() -> None:
    lowest = {
        activation: min(
            answers(
                network_for(
                    PIXEL_ENV, conv_filters=FILTERS, post_fcnet_hiddens=(16,), post_fcnet_activation=activation
                ),
                picture(),
            )
        )
        for activation in ("relu", "linear")
    }
    assert lowest["relu"] == 0.0
    assert lowest["linear"] < 0.0


@pytest.mark.key("model.zero_mean")
def test_zero_mean_puts_grey_at_zero_under_rllib() -> None:
    """Bytes of 128 are to a network with ``zero_mean`` what bytes of 0 are to one without."""
    model: Mapping[str, Any] = {"dim": 10, "conv_filters": FILTERS, "conv_activation": "tanh"}
    grey, black = torch.full((1, 10, 10, 3), 128, dtype=torch.uint8), torch.zeros((1, 10, 10, 3), dtype=torch.uint8)
    centred = network_for(PIXEL_ENV, "rllib", zero_mean=True, **model)
    positive = network_for(PIXEL_ENV, "rllib", zero_mean=False, **model)
    assert answers(centred, grey) == answers(positive, black)
    assert answers(centred, black) != answers(positive, black)
    deepmind = network_for(PIXEL_ENV, "deepmind", zero_mean=True, **model)
    assert answers(deepmind, black) == answers(positive, black)


def test_an_agent_learns_from_pixels() -> None:
    config = DQNConfig(
        preprocessor_pref=None,
        model=ModelConfig(conv_filters=((8, (4, 4), 2), (16, (5, 5), 1))),
        hiddens=(16,),
        lr=3e-3,
        train_batch_size=32,
        learning_starts=64,
        buffer_size=1000,
        schedule_max_timesteps=1000,
        exploration_fraction=0.5,
        timesteps_per_iteration=200,
        min_iter_time_s=0.0,
    )
    agent = DQNAgent(PIXEL_ENV, config, InlineTaskPool(), seed=0)
    for _ in range(8):
        agent.train()
    assert agent.evaluate(40).returns.mean() == 1.0
    agent.stop()


@pytest.mark.key("model.fcnet_hiddens")
def test_fcnet_hiddens_are_the_sizes_of_the_torsos_layers() -> None:
    assert shapes(network_for(COUNTING_ENV, fcnet_hiddens=(7, 5))) == [(7, 3), (5, 7)]
    assert shapes(network_for(COUNTING_ENV, fcnet_hiddens=())) == []


@pytest.mark.key("model.fcnet_activation")
def test_fcnet_activation_is_what_follows_each_of_them() -> None:
    obs = torch.randn((64, 3), generator=torch.Generator().manual_seed(0)) * 10
    features = {
        name: network_for(COUNTING_ENV, fcnet_hiddens=(6,), fcnet_activation=name).torso(obs)
        for name in ("tanh", "relu", "linear")
    }
    assert features["tanh"].abs().max() <= 1.0
    assert features["relu"].min() == 0.0
    assert torch.allclose(features["linear"].clamp(min=0), features["relu"])
    assert torch.allclose(features["linear"].tanh(), features["tanh"])
