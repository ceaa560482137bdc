"""Distributions of actions: what NumPy draws has the probabilities that both libraries say, in every action space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text

from rlexp.models.action_distributions import Actions, CategoricalActions, GaussianActions, actions_of
from rlexp.models.torch_distributions import distribution_of, numbered_actions
from rlexp.sample_batch import Array

CHOICES: dict[str, Space[Any]] = {
    "discrete": Discrete(4),
    "discrete from 2": Discrete(3, start=2),
    "discrete from -1": Discrete(3, start=-1),
    "one action": Discrete(1),
    "multi-discrete": MultiDiscrete([3, 2, 5]),
    "multi-discrete from 1": MultiDiscrete([3, 2], start=[1, -4]),
    "multi-discrete matrix": MultiDiscrete(np.array([[2, 3, 4], [5, 2, 3]])),
    "multi-binary": MultiBinary(3),
    "multi-binary matrix": MultiBinary((2, 3)),
    "integers": Box(np.array([-2, 5]), np.array([1, 6]), dtype=np.int8),
    "small integers": Box(3, 5, (2, 3), np.uint8),
    "one integer": Box(-1, 2, (), np.int32),
}
NUMBERS: dict[str, Space[Any]] = {
    "box": Box(-1.0, 1.0, (2,)),
    "one number": Box(-1.0, 1.0, ()),
    "box matrix": Box(-1.0, 1.0, (2, 3)),
    "box of float64": Box(-1.0, 1.0, (3,), np.float64),
    "box without bounds": Box(-np.inf, np.inf, (1,)),
}
SPACES = CHOICES | NUMBERS
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=tuple(SPACES))
every_choice = pytest.mark.parametrize("space", CHOICES.values(), ids=tuple(CHOICES))


def random_inputs(actions: Actions, rows: int, scale: float = 1.5) -> Array:
    return (scale * np.random.default_rng(1).normal(size=(rows, actions.num_inputs))).astype(np.float32)


def torch_log_prob(actions: Actions, inputs: Array, taken: Array) -> Array:
    distribution = distribution_of(actions, torch.from_numpy(inputs))
    return distribution.log_prob(numbered_actions(actions, torch.from_numpy(taken))).numpy()


@every_space
def test_actions_have_the_shape_and_dtype_of_their_space(space: Space[Any]) -> None:
    actions = actions_of(space)
    inputs = random_inputs(actions, rows=7)
    for taken in (actions.draw(inputs, np.random.default_rng(0)), actions.most_likely(inputs)):
        assert taken.shape == (7, *(space.shape or ()))
        assert taken.dtype == space.dtype
        if space in CHOICES.values():
            assert all(space.contains(np.asarray(action) if isinstance(space, Box) else action) for action in taken)


@every_space
def test_numpy_and_torch_agree_on_the_probability_of_an_action(space: Space[Any]) -> None:
    actions = actions_of(space)
    inputs = random_inputs(actions, rows=50)
    taken = actions.draw(inputs, np.random.default_rng(0))
    log_prob = actions.log_prob(inputs, taken)
    assert log_prob.shape == (50,)
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, torch_log_prob(actions, inputs, taken), rtol=1e-5, atol=1e-5)


@every_space
def test_no_action_is_likelier_than_the_most_likely_one(space: Space[Any]) -> None:
    actions = actions_of(space)
    inputs = random_inputs(actions, rows=50)
    best = actions.log_prob(inputs, actions.most_likely(inputs))
    drawn = actions.log_prob(inputs, actions.draw(inputs, np.random.default_rng(0)))
    assert (drawn <= best + 1e-5).all()


@every_choice
def test_choices_are_drawn_as_often_as_their_probabilities_say(space: Space[Any]) -> None:
    actions, count = actions_of(space), 4000
    inputs = np.repeat(random_inputs(actions, rows=1), count, axis=0)
    drawn = actions.draw(inputs, np.random.default_rng(5)).reshape(count, -1)
    taken, frequencies = np.unique(drawn, axis=0, return_counts=True)
    expected = count * np.exp(actions.log_prob(inputs[: len(taken)], taken.reshape(-1, *(space.shape or ()))))
    often = expected >= 5
    statistic = (np.square(frequencies - expected)[often] / expected[often]).sum()
    freedom = max(int(np.count_nonzero(often)) - 1, 1)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


@every_space
def test_no_rows_have_no_actions_and_no_probabilities(space: Space[Any]) -> None:
    actions, inputs = actions_of(space), np.empty((0, actions_of(space).num_inputs), np.float32)
    drawn = actions.draw(inputs, np.random.default_rng(0))
    assert drawn.shape == actions.most_likely(inputs).shape == (0, *(space.shape or ()))
    assert actions.log_prob(inputs, drawn).shape == (0,)


@pytest.mark.parametrize("space", NUMBERS.values(), ids=tuple(NUMBERS))
def test_numbers_are_drawn_with_their_mean_and_deviation(space: Space[Any]) -> None:
    actions, count = actions_of(space), 4000
    inputs = np.repeat(random_inputs(actions, rows=1), count, axis=0)
    drawn = actions.draw(inputs, np.random.default_rng(5)).reshape(count, -1)
    mean, log_std = np.split(inputs[0], 2)
    distance = (drawn - mean) / np.exp(log_std)
    assert abs(distance.mean(axis=0)).max() < 5 / math.sqrt(count)
    assert abs(distance.std(axis=0) - 1).max() < 5 / math.sqrt(2 * count)


def test_log_probabilities_entropies_and_divergences_by_hand() -> None:
    choice, number = actions_of(Discrete(2)), actions_of(Box(-1.0, 1.0, (1,)))
    half = distribution_of(choice, torch.tensor([[1.0, 1.0]]))
    quarter = distribution_of(choice, torch.tensor([[0.0, math.log(3)]]))
    assert float(quarter.kl_from(half)) == pytest.approx(0.14384, abs=1e-5)
    assert float(quarter.entropy()) == pytest.approx(0.56234, abs=1e-5)
    assert float(quarter.log_prob(torch.tensor([[1]]))) == pytest.approx(math.log(0.75))
    standard = distribution_of(number, torch.tensor([[0.0, 0.0]]))
    wide = distribution_of(number, torch.tensor([[1.0, math.log(2)]]))
    assert float(standard.log_prob(torch.tensor([[0.5]]))) == pytest.approx(-1.04394, abs=1e-5)
    assert float(wide.kl_from(standard)) == pytest.approx(0.44315, abs=1e-5)
    assert float(standard.entropy()) == pytest.approx(1.41894, abs=1e-5)
    assert float(wide.entropy()) == pytest.approx(1.41894 + math.log(2), abs=1e-5)


def test_a_product_has_the_sum_of_its_parts() -> None:
    both = actions_of(MultiDiscrete([2, 3]))
    inputs, others = (torch.from_numpy(random_inputs(both, rows=8)), torch.from_numpy(random_inputs(both, 9)[1:]))
    product, other = (distribution_of(both, each) for each in (inputs, others))
    first, second = actions_of(Discrete(2)), actions_of(Discrete(3))
    ones = distribution_of(first, inputs[:, :2]), distribution_of(second, inputs[:, 2:])
    twos = distribution_of(first, others[:, :2]), distribution_of(second, others[:, 2:])
    torch.testing.assert_close(product.entropy(), ones[0].entropy() + ones[1].entropy())
    torch.testing.assert_close(product.kl_from(other), ones[0].kl_from(twos[0]) + ones[1].kl_from(twos[1]))


@every_space
def test_a_divergence_from_itself_is_zero_and_from_others_is_not(space: Space[Any]) -> None:
    actions = actions_of(space)
    inputs = torch.from_numpy(random_inputs(actions, rows=20))
    others = torch.from_numpy(random_inputs(actions, rows=21)[1:])
    one, other = distribution_of(actions, inputs), distribution_of(actions, others)
    torch.testing.assert_close(one.kl_from(distribution_of(actions, inputs)), torch.zeros(20))
    assert (one.kl_from(other) > (-1e-6 if actions.num_inputs == 1 else 1e-3)).all()


@every_choice
def test_entropies_are_the_mean_of_negative_log_probabilities(space: Space[Any]) -> None:
    actions = actions_of(space)
    inputs = np.repeat(random_inputs(actions, rows=1), 4000, axis=0)
    surprises = -actions.log_prob(inputs, actions.draw(inputs, np.random.default_rng(2)))
    entropy = float(distribution_of(actions, torch.from_numpy(inputs[:1])).entropy())
    assert surprises.mean() == pytest.approx(entropy, abs=5 * float(surprises.std()) / math.sqrt(4000) + 1e-5)


@pytest.mark.parametrize("log_std", [25.0, -25.0, 1e4, -1e4])
def test_deviations_beyond_the_limit_stay_finite_and_have_no_gradient(log_std: float) -> None:
    actions = actions_of(Box(-1.0, 1.0, (1,)))
    inputs = np.array([[0.5, log_std]], np.float32)
    limit = np.array([[0.5, math.copysign(20.0, log_std)]], np.float32)
    drawn, expected = (actions.draw(each, np.random.default_rng(0)) for each in (inputs, limit))
    np.testing.assert_array_equal(drawn, expected)
    np.testing.assert_array_equal(actions.log_prob(inputs, drawn), actions.log_prob(limit, drawn))
    np.testing.assert_allclose(actions.log_prob(inputs, drawn), torch_log_prob(actions, inputs, drawn), rtol=1e-5)
    learned = torch.from_numpy(inputs).requires_grad_()
    distribution = distribution_of(actions, learned)
    (distribution.log_prob(torch.from_numpy(drawn)) + distribution.entropy()).sum().backward()  # type: ignore[no-untyped-call]
    assert learned.grad is not None
    assert torch.isfinite(learned.grad).all()
    assert learned.grad[0, 1] == 0


@pytest.mark.parametrize("logits", [[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e38, -1e38, 0.0], [0.0, -math.inf, -1e4]])
def test_extreme_logits_draw_the_likely_actions_alone(logits: list[float]) -> None:
    actions = actions_of(Discrete(3))
    inputs = np.repeat(np.array([logits], np.float32), 1000, axis=0)
    drawn = actions.draw(inputs, np.random.default_rng(0))
    probable = {index for index, logit in enumerate(logits) if logit == max(logits)}
    assert set(drawn.tolist()) == probable
    log_prob = actions.log_prob(inputs, drawn)
    np.testing.assert_allclose(log_prob, -math.log(len(probable)), atol=1e-6)
    np.testing.assert_allclose(log_prob, torch_log_prob(actions, inputs, drawn), atol=1e-6)


class LargestNumbers(np.random.Generator):
    """Draws the largest number below 1 each time."""

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return np.full(size, np.nextafter(dtype(1), dtype(0)), dtype)


def test_an_action_of_probability_zero_is_never_drawn_even_by_rounding() -> None:
    inputs = np.random.default_rng(0).normal(size=(2000, 5)).astype(np.float32)
    inputs[:1000] = 0.0
    inputs[:, 4] = -1e4
    drawn = actions_of(Discrete(5)).draw(inputs, LargestNumbers(np.random.PCG64(0)))
    assert set(drawn.tolist()) == {3}


@pytest.mark.parametrize("space", [Dict({"a": Discrete(2)}), Text(3)])
def test_other_spaces_have_no_distribution(space: Space[Any]) -> None:
    with pytest.raises(ValueError, match="no distribution for the action space"):
        actions_of(space)


@pytest.mark.parametrize("name", ["one choice", "choices", "numbers"])
def test_derivatives_equal_those_of_autograd(name: str) -> None:
    kinds: dict[str, Actions] = {
        "one choice": CategoricalActions((4,), (0,), (), "int64"),
        "choices": CategoricalActions((2, 3), (1, 0), (2,), "int64"),
        "numbers": GaussianActions((3,), "float32"),
    }
    actions, rng = kinds[name], np.random.default_rng(0)
    inputs, old_inputs = (torch.from_numpy(rng.normal(size=(50, actions.num_inputs)).astype("f")) for _ in range(2))
    if isinstance(actions, GaussianActions):
        inputs[0, -1], inputs[1, -1] = 25.0, -25.0  # beyond the limit nothing depends on them
    taken = numbered_actions(actions, torch.from_numpy(actions.draw(old_inputs.numpy(), rng)))
    inputs.requires_grad_()
    distribution, old = distribution_of(actions, inputs), distribution_of(actions, old_inputs)
    for value, derivative in (
        (distribution.log_prob(taken), distribution.log_prob_gradient(taken)),
        (distribution.entropy(), distribution.entropy_gradient()),
        (distribution.kl_from(old), distribution.kl_gradient(old)),
    ):
        (expected,) = torch.autograd.grad([value.sum()], [inputs], retain_graph=True)
        torch.testing.assert_close(derivative, expected, rtol=1e-4, atol=1e-5)
