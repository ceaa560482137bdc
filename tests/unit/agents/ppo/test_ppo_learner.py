"""PPO's learner: what it does with the rows of a train batch.

The gradients of a network that is computed layer by layer, against those of autograd.

The losses of PPO against numbers worked by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.ppo.agent import (
    PPOLearner,
    TrainBatch,
    adapted_kl_coeff,
    surrogate_losses,
    value_losses,
)
from rlexp.agents.torch.flat_adam import FlatParameters
from rlexp.agents.torch.trained_network import explained_variance
from rlexp.errors import TrialError
from rlexp.models.layered import (
    AutogradNetwork,
    DifferentiableNetwork,
    LayeredNetwork,
    can_be_layered,
    differentiable,
)
from rlexp.models.network_config import ActorCriticConfig, TorsoConfig
from rlexp.models.networks import ActorCritic
from rlexp.rollout.folds import ADVANTAGES, VALUE_TARGETS
from rlexp.sample_batch import OBS, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.ppo import NUMBERS, make_batch, make_learner

TORSO = TorsoConfig((16, 8), "tanh", None, "relu", (), "relu", zero_mean=False)
NETWORK = ActorCriticConfig((5,), num_inputs=6, num_free_log_std=0, torso=TORSO, shares_torso=False)
CONFIGS = {
    "two torsos": NETWORK,
    "one torso": replace(NETWORK, shares_torso=True),
    "free deviations": replace(NETWORK, num_free_log_std=3),
    "relu, layers behind": replace(
        NETWORK, torso=replace(TORSO, fcnet_activation="relu", post_fcnet_hiddens=(7,), post_fcnet_activation="tanh")
    ),
    "linear": replace(NETWORK, torso=replace(TORSO, fcnet_activation="linear")),
    "no layers": replace(NETWORK, torso=replace(TORSO, fcnet_hiddens=())),
    "no layers, one torso": replace(NETWORK, torso=replace(TORSO, fcnet_hiddens=()), shares_torso=True),
    "bytes": replace(NETWORK, sees_byte_vectors=True),
}


def gradient_of(
    make: Callable[[ActorCritic], DifferentiableNetwork], module: ActorCritic, parameters: FlatParameters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs for some observations, as one tensor, and the gradient of some function of them."""
    gradient = parameters.make_gradient()
    network = make(module)
    generator = torch.Generator().manual_seed(1)
    obs = torch.randint(0, 256, (9, 5), generator=generator, dtype=torch.uint8)
    of_inputs, of_values = torch.randn(9, 6, generator=generator), torch.randn(9, generator=generator)
    inputs, values = network.forward(obs)
    network.backward(of_inputs, of_values)
    return torch.cat([inputs, values.unsqueeze(1)], dim=1), gradient


@pytest.mark.parametrize("config", CONFIGS.values(), ids=tuple(CONFIGS))
def test_layer_by_layer_equals_autograd(config: ActorCriticConfig) -> None:
    torch.manual_seed(0)
    module = ActorCritic(config)
    parameters = FlatParameters(module)
    parameters.make_gradient()
    assert isinstance(differentiable(module), LayeredNetwork)
    outputs, gradient = gradient_of(LayeredNetwork, module, parameters)
    expected_outputs, expected = gradient_of(AutogradNetwork, module, parameters)
    torch.testing.assert_close(outputs, expected_outputs)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
    assert gradient.abs().max() > 1.0


def test_activations_that_need_their_input_and_images_are_left_to_autograd() -> None:
    swish = ActorCritic(replace(NETWORK, torso=replace(TORSO, fcnet_activation="swish")))
    image = ActorCritic(replace(NETWORK, observation_shape=(42, 42, 1)))
    assert not can_be_layered(swish.policy_torso)
    assert not can_be_layered(image.policy_torso)
    assert isinstance(differentiable(swish), AutogradNetwork)


@pytest.fixture
def minibatches(monkeypatch: pytest.MonkeyPatch) -> list[TrainBatch]:
    """The minibatches of learners that a test makes."""
    seen: list[TrainBatch] = []
    part = TrainBatch.part

    def remembered(rows: TrainBatch, indices: Tensor) -> TrainBatch:
        seen.append(part(rows, indices))
        return seen[-1]

    monkeypatch.setattr(TrainBatch, "part", remembered)
    return seen


def numbered(count: int) -> SampleBatch:
    """Return a batch whose rows have their numbers as observations."""
    obs = np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, axis=1)
    return make_batch(count=count).with_columns(**{OBS: obs / count})


def row_numbers(minibatches: list[TrainBatch], count: int) -> list[list[int]]:
    return [torch.round(rows.obs[:, 0] * count).int().tolist() for rows in minibatches]


def test_minibatches_are_drawn_by_the_learners_seed(minibatches: list[TrainBatch]) -> None:
    for seed in (0, 0, 1):
        make_learner(seed=seed, num_sgd_iter=1).learn_on_batch(numbered(32))
    first, same, other = (row_numbers(minibatches[start : start + 2], 32) for start in (0, 2, 4))
    assert first == same != other


def test_advantages_are_normalised_once_over_the_whole_batch(minibatches: list[TrainBatch]) -> None:
    batch = make_batch(count=3).with_columns(**{ADVANTAGES: np.array([1, 2, 3], np.float32)})
    make_learner(num_sgd_iter=1, sgd_minibatch_size=1).learn_on_batch(batch)
    found = sorted(float(rows.numbers[0, 1]) for rows in minibatches)
    assert found == pytest.approx([-1.22474, 0.0, 1.22474], abs=1e-4)


def test_equal_advantages_stay_finite(minibatches: list[TrainBatch]) -> None:
    batch = make_batch(count=4).with_columns(**{ADVANTAGES: np.full(4, 2.5, np.float32)})
    make_learner().learn_on_batch(batch)
    assert all(not rows.numbers[:, 1].any() for rows in minibatches)


@pytest.mark.parametrize("space", [None, NUMBERS])
def test_the_first_loss_is_that_of_the_policy_that_sampled(space: Any) -> None:
    spaces = {} if space is None else {"space": space}
    learner = make_learner(**spaces, num_sgd_iter=1, sgd_minibatch_size=32)
    stats = learner.learn_on_batch(make_batch(**spaces)).stats
    assert stats["kl"] == pytest.approx(0, abs=1e-6)
    assert stats["policy_loss"] == pytest.approx(0, abs=1e-5)  # the mean of normalised advantages
    assert stats["clip_fraction"] == 0
    expected = stats["policy_loss"] + 0.5 * stats["vf_loss"] - 0.01 * stats["entropy"]
    assert stats["total_loss"] == pytest.approx(expected, abs=1e-5)
    most = np.log(4) if space is None else 2 * 1.41894
    assert stats["entropy"] == pytest.approx(most, abs=0.01)


def test_learning_raises_the_probability_of_better_actions() -> None:
    batch = make_batch(count=64)
    learner = make_learner(num_sgd_iter=20, lr=PiecewiseSchedule(((0, 1e-2),)), kl_coeff=0.0)
    first = learner.learn_on_batch(batch).stats
    assert first["policy_loss"] < -0.05
    assert first["kl"] > 0
    assert 0 < first["clip_fraction"] < 1


@pytest.mark.parametrize(
    ("column", "value"), [(VALUE_TARGETS, 1e30), (VALUE_TARGETS, np.nan), (ADVANTAGES, np.inf), (OBS, np.nan)]
)
def test_a_loss_that_is_not_finite_ends_the_trial_with_a_remedy(column: str, value: float) -> None:
    learner: PPOLearner = make_learner()
    learner.learn_on_batch(make_batch())
    batch = make_batch(1)
    wrong = batch[column].copy()
    wrong[5] = value
    with pytest.raises(TrialError, match=r"the loss is (nan|inf) and its gradient (nan|inf) at update 8$") as caught:
        learner.learn_on_batch(batch.with_columns(**{column: wrong}))
    assert caught.value.hint == "training diverged: lower lr, set grad_clip or clip_rewards"


def tensors(*columns: float) -> list[torch.Tensor]:
    return [torch.tensor([number]) for number in columns]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (2.0, 1.0, -1.3, 0.0),
        (2.0, -1.0, 2.0, 2.0),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.7, 0.0),
        (1.2, 1.0, -1.2, -1.2),
        (1.0, -3.0, 3.0, 3.0),
    ],
)
def test_the_surrogate_loss_is_the_worse_of_both(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    logp, old_logp, advantages = tensors(math.log(ratio) - 1.5, -1.5, advantage)
    losses, derivatives, ratios = surrogate_losses(logp, old_logp, advantages, 0.3)
    assert losses.tolist() == pytest.approx([loss])
    assert derivatives.tolist() == pytest.approx([gradient])
    assert ratios.tolist() == pytest.approx([ratio])


@pytest.mark.parametrize(
    ("value", "old_value", "target", "loss", "gradient"),
    [
        (2.0, 1.0, 4.0, 6.25, 0.0),  # it has moved by more than .5 towards the target: no further
        (2.0, 1.0, 1.0, 1.0, 2.0),  # it has moved away: back
        (1.25, 1.0, 4.0, 7.5625, -5.5),  # within the limit: a plain square
        (0.0, 1.0, 4.0, 16.0, -8.0),
    ],
)
def test_the_value_loss_is_the_larger_square(
    value: float, old_value: float, target: float, loss: float, gradient: float
) -> None:
    values, old_values, targets = tensors(value, old_value, target)
    losses, derivatives = value_losses(values, old_values, targets, 0.5)
    assert losses.tolist() == pytest.approx([loss])
    assert derivatives.tolist() == pytest.approx([gradient])


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.021, 0.3), (0.004, 0.1), (0.01, 0.2), (0.02, 0.2), (0.005, 0.2), (math.inf, 0.3)]
)
def test_kl_coeff_is_adapted_where_kl_is_beyond_a_factor_of_two(kl: float, expected: float) -> None:
    assert adapted_kl_coeff(0.2, kl, kl_target=0.01) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("targets", "values", "expected"),
    [
        ((1.0, 2.0, 3.0), (1.0, 2.0, 2.0), 2 / 3),
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), 1.0),
        ((1.0, 2.0, 3.0), (11.0, 12.0, 13.0), 1.0),  # a constant error has no variance
        ((1.0, 2.0, 3.0), (5.0, 5.0, 5.0), 0.0),
        ((1.0, 2.0, 3.0), (9.0, 0.0, -9.0), -1.0),
        ((2.0, 2.0, 2.0), (1.0, 2.0, 3.0), -1.0),
        ((2.0,), (3.0,), 1.0),
    ],
)
def test_explained_variance_by_hand(targets: tuple[float, ...], values: tuple[float, ...], expected: float) -> None:
    assert float(explained_variance(torch.tensor(targets), torch.tensor(values))) == pytest.approx(expected)
