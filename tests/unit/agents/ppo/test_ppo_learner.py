"""PPO's learner: what it does with the rows of a train batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.ppo.learner import PPOLearner, Rows
from rlexp.errors import TrialError
from rlexp.policy import Weights
from rlexp.rollout.folds import ADVANTAGES, VALUE_TARGETS
from rlexp.sample_batch import OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.unit.agents.ppo.batches import NUMBERS, make_batch, make_learner


@pytest.fixture
def minibatches(monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    """The minibatches of learners that a test makes."""
    seen: list[Rows] = []
    part = Rows.part

    def remembered(rows: Rows, indices: Tensor) -> Rows:
        seen.append(part(rows, indices))
        return seen[-1]

    monkeypatch.setattr(Rows, "part", remembered)
    return seen


def numbered(count: int) -> SampleBatch:
    """Return a batch whose rows have their numbers as observations."""
    obs = np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, axis=1)
    return make_batch(count=count).with_columns(**{OBS: obs / count})


def row_numbers(minibatches: list[Rows], count: int) -> list[list[int]]:
    return [torch.round(rows.obs[:, 0] * count).int().tolist() for rows in minibatches]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(32, [16, 16]), (33, [17, 16]), (40, [20, 20]), (41, [14, 14, 13]), (7, [7]), (1, [1])],
)
def test_each_epoch_sees_every_row_once_in_nearly_equal_parts(
    count: int, sizes: list[int], minibatches: list[Rows]
) -> None:
    learner = make_learner(num_sgd_iter=3, sgd_minibatch_size=16)
    learner.learn_on_batch(numbered(count))
    numbers = row_numbers(minibatches, count)
    assert [len(part) for part in numbers] == sizes * 3
    epochs = [list(chain(*numbers[start : start + len(sizes)])) for start in range(0, len(numbers), len(sizes))]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    if count > 10:
        assert epochs[0] != epochs[1] != epochs[2]
    assert learner.num_updates == len(numbers)


def test_minibatches_are_drawn_by_the_learners_seed(minibatches: list[Rows]) -> None:
    for seed in (0, 0, 1):
        make_learner(seed=seed, num_sgd_iter=1).learn_on_batch(numbered(32))
    first, same, other = (row_numbers(minibatches[start : start + 2], 32) for start in (0, 2, 4))
    assert first == same != other


def test_advantages_are_normalised_once_over_the_whole_batch(minibatches: list[Rows]) -> None:
    batch = make_batch(count=3).with_columns(**{ADVANTAGES: np.array([1, 2, 3], np.float32)})
    make_learner(num_sgd_iter=1, sgd_minibatch_size=1).learn_on_batch(batch)
    found = sorted(float(rows.numbers[0, 1]) for rows in minibatches)
    assert found == pytest.approx([-1.22474, 0.0, 1.22474], abs=1e-4)


def test_equal_advantages_stay_finite(minibatches: list[Rows]) -> None:
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


@pytest.mark.parametrize(("kl_target", "expected"), [(1e-6, 0.3), (1e6, 0.1)])
def test_the_next_batch_has_the_adapted_kl_coeff(kl_target: float, expected: float) -> None:
    learner = make_learner(kl_target=kl_target, num_sgd_iter=4)
    found = [learner.learn_on_batch(make_batch(number)).stats["cur_kl_coeff"] for number in range(2)]
    assert found == pytest.approx([0.2, expected])


def test_schedules_go_by_the_steps_sampled() -> None:
    falling = PiecewiseSchedule(((0, 1.0), (100, 0.0)))
    learner = make_learner(lr=falling, entropy_coeff=falling)
    found = []
    for step in (0, 25, 100, 400):
        learner.observe_progress(step)
        stats = learner.learn_on_batch(make_batch()).stats
        found.append((stats["lr"], stats["cur_entropy_coeff"]))
    assert found == [(1.0, 1.0), (0.75, 0.75), (0.0, 0.0), (0.0, 0.0)]


def parts(weights: Weights, prefix: str) -> Iterator[Array]:
    return (array for name, array in weights.items() if name.startswith(prefix))


def test_without_a_critic_no_value_is_learned() -> None:
    learner = make_learner(vf_loss_coeff=0.0)
    before = learner.get_weights()
    stats = learner.learn_on_batch(make_batch()).stats
    after = learner.get_weights()
    assert stats["vf_loss"] == 0
    for one, other in zip(parts(before, "value"), parts(after, "value"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any((one != other).any() for one, other in zip(parts(before, "policy"), parts(after, "policy"), strict=True))


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
