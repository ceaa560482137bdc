"""PQN's learner: its epochs and its loss against numbers worked by hand, and stops amid them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlexp.agents.pqn.agent import PQNLearner
from rlexp.config.keys.pqn import PQNConfig
from rlexp.errors import TrialError
from rlexp.policy import InterruptedLearningError
from rlexp.rollout.folds import VALUE_TARGETS
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from tests.lab.agents import Update
from tests.lab.pqn import distance, in_double, make_batch, make_learner, reference, values_of
from tests.unit.agents.test_agent import assert_same_bits


def learned(learner: PQNLearner, batch: SampleBatch) -> Update:
    before = learner.state_dict()
    return Update(batch, learner.learn_on_batch(batch), before, learner.state_dict())


@pytest.mark.parametrize("clipping", [None, 0.05])
def test_a_batch_is_learned_as_in_double_precision(clipping: float | None) -> None:
    learner = make_learner(num_sgd_iter=5, sgd_minibatch_size=32, grad_norm_clipping=clipping, adam_epsilon=1e-3)
    update = learned(learner, make_batch())
    keys: dict[str, Any] = {"num_sgd_iter": 5, "grad_norm_clipping": clipping, "adam_epsilon": 1e-3, "lr": 1e-3}
    expected, loss = reference(PQNConfig.model_validate(keys), update)
    assert distance(update, expected) < 1e-6
    assert update.result.stats["loss"] == pytest.approx(loss, rel=1e-5)
    assert distance(update, in_double(update.before)) > 1e-3


def test_figures_are_of_the_last_epoch() -> None:
    batch = make_batch()
    update = learned(make_learner(num_sgd_iter=1, sgd_minibatch_size=32), batch)
    values = values_of(in_double(update.before), batch[OBS]).detach().numpy()
    errors = values[np.arange(len(batch)), batch[ACTIONS]] - batch[VALUE_TARGETS]
    stats = update.result.stats
    assert stats["loss"] == pytest.approx(0.5 * (errors**2).mean(), rel=1e-5)
    assert stats["mean_q"] == pytest.approx(values.mean(), rel=1e-4)
    assert stats["mean_td_error"] == pytest.approx(abs(errors).mean(), rel=1e-5)
    assert stats["lr"] == 1e-3
    assert set(stats) == {"loss", "mean_q", "mean_td_error", "grad_norm", "lr"}


def test_an_interrupted_learner_is_as_it_was_before_the_batch() -> None:
    learner, other = make_learner(), make_learner()
    for each in (learner, other):
        each.learn_on_batch(make_batch(seed=1))
    before, looks = learner.state_dict(), iter(range(100))
    with pytest.raises(InterruptedLearningError):
        learner.learn_on_batch(make_batch(seed=2), lambda: next(looks) == 3)
    assert_same_bits(learner.state_dict(), before)
    results = [each.learn_on_batch(make_batch(seed=2)).stats for each in (learner, other)]
    assert results[0] == results[1]
    assert_same_bits(learner.state_dict(), other.state_dict())


def test_targets_that_overflow_the_loss_end_the_trial_with_a_remedy() -> None:
    batch = make_batch().with_columns(**{VALUE_TARGETS: np.full(32, 1e30, np.float32)})
    with pytest.raises(TrialError, match=r"the loss is (nan|inf) and its gradient") as caught:
        make_learner().learn_on_batch(batch)
    assert caught.value.hint is not None
    assert "clip_rewards" in caught.value.hint
