"""The shapes that weights must have are those of the network, whichever library computes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlexp.models.dense import has_numpy_form, parameter_shapes
from rlexp.models.network_config import HeadConfig, QNetworkConfig, TorsoConfig
from rlexp.models.networks import QNetwork

TORSO = TorsoConfig((16, 8), "tanh", None, "relu", (4,), "relu", True)
HEAD = HeadConfig((6, 5), dueling=True, noisy=False, sigma0=0.5, num_atoms=1, v_min=-10.0, v_max=10.0)
DUELING = QNetworkConfig((3,), 2, TORSO, HEAD)
BARE = replace(TORSO, fcnet_hiddens=(), post_fcnet_hiddens=())


@pytest.mark.parametrize(
    ("config", "is_numpy"),
    [
        (DUELING, True),
        (replace(DUELING, head=replace(HEAD, dueling=False)), True),
        (replace(DUELING, head=replace(HEAD, hiddens=())), True),
        (replace(DUELING, torso=BARE), True),
        (replace(DUELING, head=replace(HEAD, noisy=True)), True),
        (replace(DUELING, head=replace(HEAD, num_atoms=51)), True),
        (replace(DUELING, observation_shape=(42, 42, 4)), False),
    ],
    ids=["dueling", "plain", "no-hiddens", "no-torso", "noisy", "atoms", "image"],
)
def test_shapes_are_those_of_the_network(config: QNetworkConfig, is_numpy: bool) -> None:
    assert has_numpy_form(config) is is_numpy
    parameters = QNetwork(config).state_dict()
    assert parameter_shapes(config) == {name: tuple(tensor.shape) for name, tensor in parameters.items()}
