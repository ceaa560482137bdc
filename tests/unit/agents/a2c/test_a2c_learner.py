"""The learner of A2C, A3C and PG against numbers in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlexp.errors import TrialError
from rlexp.rollout.folds import ADVANTAGES
from rlexp.schedules import PiecewiseSchedule
from tests.lab.a2c import CONFIGS, distance, make_learner, reference
from tests.lab.agents import Update
from tests.lab.ppo import make_batch


@pytest.mark.parametrize("run", ["A2C", "PG"])
@pytest.mark.parametrize(("key", "value"), [("grad_norm_clipping", 0.5), ("grad_norm_clipping", None), ("lr", 1e-2)])
def test_a_batch_is_learned_as_in_double_precision(run: str, key: str, value: float | None) -> None:
    keys: dict[str, Any] = {"adam_epsilon": 1e-3, "lr": 1e-3, "grad_norm_clipping": 40.0, "entropy_coeff": 0.01}
    keys |= {key: value, "vf_loss_coeff": 0.5}
    config = CONFIGS[run].model_validate(keys)
    settings = {name: keys[name] for name in ("adam_epsilon", "grad_norm_clipping")}
    lr = PiecewiseSchedule(((0, keys["lr"]),))
    coeff = 0.5 if config.use_critic else 0.0
    learner = make_learner(lr=lr, vf_loss_coeff=coeff, sums_losses=config.SUMS_LOSSES, **settings)
    before, batch = learner.state_dict(), make_batch()
    update = Update(batch, learner.learn_on_batch(batch), before, learner.state_dict())
    expected, figures = reference(config, update)
    assert distance(update, expected) < 1e-6
    assert update.largest_change() > 1e-5
    stats = update.result.stats
    assert {name: stats[name] for name in figures} == pytest.approx(figures, rel=1e-4)
    assert stats["lr"] == keys["lr"]
    assert stats["cur_entropy_coeff"] == 0.01


def test_advantages_are_not_normalised() -> None:
    batch = make_batch()
    scaled = batch.with_columns(**{ADVANTAGES: 3 * batch[ADVANTAGES]})
    losses = [make_learner().learn_on_batch(each).stats["policy_loss"] for each in (batch, scaled)]
    assert losses[1] == pytest.approx(3 * losses[0], rel=1e-5)


def test_a_loss_that_overflows_ends_the_trial_with_a_remedy() -> None:
    batch = make_batch().with_columns(**{ADVANTAGES: np.full(32, np.inf, np.float32)})
    with pytest.raises(TrialError, match=r"the loss is (nan|inf|-inf) and its gradient") as caught:
        make_learner().learn_on_batch(batch)
    assert caught.value.hint is not None
    assert "lower lr" in caught.value.hint
