"""The gradient that is computed by hand is the one of autograd."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.dqn import learner as learner_module
from rlexp.agents.dqn.dense_loss import DenseGradient
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.loss import AutogradGradient
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.errors import TrialError
from rlexp.models import HeadConfig, QNetworkConfig
from rlexp.models.dense_gradients import is_dense
from rlexp.models.network_config import TorsoConfig
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, SampleBatch
from rlexp.schedules import PiecewiseSchedule

CPU = torch.device("cpu")


TORSO: dict[str, Any] = {
    "fcnet_hiddens": (16, 8),
    "fcnet_activation": "relu",
    "conv_filters": None,
    "conv_activation": "relu",
    "post_fcnet_hiddens": (),
    "post_fcnet_activation": "relu",
    "zero_mean": False,
}
HEAD: dict[str, Any] = {
    "hiddens": (),
    "dueling": False,
    "noisy": False,
    "sigma0": 0.5,
    "num_atoms": 1,
    "v_min": -1.0,
    "v_max": 1.0,
}


def network_config(
    torso: dict[str, Any] | None = None, head: dict[str, Any] | None = None, sees_byte_vectors: bool = False
) -> QNetworkConfig:
    parts = TorsoConfig(**TORSO | (torso or {})), HeadConfig(**HEAD | (head or {}))
    return QNetworkConfig((3,), 4, *parts, sees_byte_vectors)


def batch_of(rows: int, seed: int = 0, as_bytes: bool = False) -> SampleBatch:
    rng = np.random.default_rng(seed)

    def obs() -> np.ndarray[Any, Any]:
        if as_bytes:
            return rng.integers(0, 256, (rows, 3)).astype(np.uint8)
        return rng.normal(size=(rows, 3)).astype(np.float32)

    return SampleBatch(
        {
            OBS: obs(),
            ACTIONS: rng.integers(0, 4, rows),
            REWARDS: (3 * rng.normal(size=rows)).astype(np.float32),  # on both sides of the bend of the Huber loss
            DISCOUNTS: rng.choice([0.0, 0.9], rows).astype(np.float32),
            NEW_OBS: obs(),
            IMPORTANCE_WEIGHTS: rng.random(rows).astype(np.float32),
        }
    )


NETWORKS = {
    "plain": network_config(),
    "dueling": network_config(head={"dueling": True}),
    "dueling with hidden layers": network_config(head={"dueling": True, "hiddens": (12, 6)}),
    "wide": network_config(torso={"fcnet_hiddens": (160, 128)}, head={"dueling": True, "hiddens": (128,)}),
    "tanh": network_config(torso={"fcnet_activation": "tanh"}, head={"hiddens": (12,)}),
    "elu and linear": network_config(
        torso={"fcnet_activation": "elu", "post_fcnet_hiddens": (7,), "post_fcnet_activation": "linear"}
    ),
    "without a torso": network_config(torso={"fcnet_hiddens": ()}, head={"dueling": True, "hiddens": (6,)}),
    "one layer": network_config(torso={"fcnet_hiddens": ()}),
    "bytes": network_config(sees_byte_vectors=True),
    "noisy": network_config(head={"noisy": True}),
    "noisy without a torso": network_config(torso={"fcnet_hiddens": ()}, head={"noisy": True, "hiddens": (6,)}),
    "atoms": network_config(head={"num_atoms": 11}),
    "two atoms": network_config(head={"num_atoms": 2, "dueling": True}),
    "all of Rainbow's": network_config(head={"num_atoms": 11, "dueling": True, "noisy": True, "hiddens": (12,)}),
}


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_equals_autograds(name: str, double_q: bool) -> None:
    config = NETWORKS[name]
    torch.manual_seed(3)
    online, target = QNetwork(config), QNetwork(config).requires_grad_(False)
    parameters, target_parameters = FlatParameters(online), FlatParameters(target)
    adam = FlatAdam(parameters, 1e-8, None)
    for network in (online, target):
        network.resample_noise(torch.Generator().manual_seed(4))
    batch = batch_of(32, as_bytes=config.sees_byte_vectors)
    expected = AutogradGradient(online, target, adam, CPU, "float32", double_q).compute(batch)
    gradient = adam.gradient.clone()
    adam.gradient.fill_(7.0)  # nothing of it may be left
    by_hand = DenseGradient(config, (online, parameters), (target, target_parameters), adam, double_q)
    found = by_hand.compute(batch)
    assert gradient.abs().max() > 0
    torch.testing.assert_close(adam.gradient, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.td_errors, expected.td_errors.numpy(), rtol=1e-5, atol=1e-6)
    figures = found.loss, found.mean_q, found.mean_td_error
    np.testing.assert_allclose(figures, expected.figures.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_atoms", [1, 11])
def test_a_loss_that_is_not_finite_is_reported_and_nothing_else(num_atoms: int) -> None:
    config = network_config(head={"num_atoms": num_atoms})
    learner = DQNLearner(config, DQNLearnerConfig(PiecewiseSchedule(((0, 1e-3),)), 1e-8, 0.5, True, 64, True, "cpu"), 1)
    state = dict(learner.state_dict())
    state["network.torso.0.weight"] = np.full_like(state["network.torso.0.weight"], np.nan)
    learner.load_state_dict(state)
    with pytest.raises(TrialError, match="the loss is nan"):
        learner.learn_on_batch(batch_of(16))


@pytest.mark.parametrize("name", ["dueling with hidden layers", "all of Rainbow's"])
def test_both_learn_the_same(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = NETWORKS[name]
    learner_config = DQNLearnerConfig(PiecewiseSchedule(((0, 1e-3),)), 1e-8, 0.5, True, 64, True, "cpu")
    by_hand = DQNLearner(config, learner_config, 1)
    monkeypatch.setattr(learner_module, "MOST_PRODUCTS", 0)
    by_autograd = DQNLearner(config, learner_config, 1)
    for seed in range(20):
        monkeypatch.setattr(learner_module, "MOST_PRODUCTS", 10**9)
        one = by_hand.learn_on_batch(batch_of(16, seed))
        monkeypatch.setattr(learner_module, "MOST_PRODUCTS", 0)
        other = by_autograd.learn_on_batch(batch_of(16, seed))
        assert one.stats == pytest.approx(other.stats, rel=1e-3)
    for parameter, weights in by_autograd.get_weights().items():
        np.testing.assert_allclose(by_hand.get_weights()[parameter], weights, rtol=1e-3, atol=1e-5)


def test_other_networks_are_left_to_autograd() -> None:
    assert not is_dense(network_config(torso={"fcnet_activation": "swish"}))
    assert not is_dense(replace(network_config(), observation_shape=(84, 84, 4)))


def test_an_activation_of_no_layer_does_not_matter() -> None:
    assert is_dense(network_config(torso={"post_fcnet_activation": "swish"}))
