"""Losses, targets and steps of DDPG, TD3 and SAC against numbers in double precision, key by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlexp.errors import TrialError
from rlexp.sample_batch import REWARDS
from tests.lab.critics import (
    AGENTS,
    DISCRETE_ENV,
    OF_DDPG,
    OF_SAC,
    ROWS,
    TINY,
    distance,
    drawn_noise,
    learned,
    make_batch,
    make_learner,
    reference_of_ddpg,
    reference_of_sac,
)
from tests.lab.envs import CONTINUOUS_ENV

CLOSE = 2e-6
"""Rounding of float32 in two steps of Adam with a learning rate of 0.01."""


def config_of(run: str, **changes: Any) -> Any:
    own = OF_SAC if run == "SAC" else OF_DDPG
    return AGENTS[run][1].model_validate({**TINY, **own, **changes})


@pytest.mark.key("use_huber", "huber_threshold", "l2_reg", "actor_lr", "critic_lr", "twin_q", "tau")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"twin_q": True},
        {"use_huber": True, "huber_threshold": 0.1},
        {"l2_reg": 0.1},
        {"grad_norm_clipping": 0.1},
        {"actor_lr": 1e-3, "critic_lr": 3e-3},
        {"tau": 1.0},
    ],
    ids=str,
)
def test_an_update_of_ddpg_is_that_of_the_paper(changes: dict[str, Any]) -> None:
    learner, config = make_learner("DDPG", **changes), config_of("DDPG", **changes)
    update = learned(learner, make_batch(9))
    assert distance(update, reference_of_ddpg(config, update)) < CLOSE
    assert all(np.isfinite(figure) for figure in update.result.stats.values())


@pytest.mark.key("smooth_target_policy", "target_noise", "target_noise_clip", "policy_delay")
def test_an_update_of_td3_has_noise_and_delays_the_policy() -> None:
    learner, config = make_learner("TD3"), config_of("TD3")
    for delayed in (True, False):
        noise = np.concatenate([np.zeros((1, ROWS, 2)), drawn_noise(learner, (ROWS, 2), 1)])
        update = learned(learner, make_batch(int(delayed)))
        if delayed:  # Adam's means are 0 only before the first update
            assert distance(update, reference_of_ddpg(config, update, noise, delayed=True)) < CLOSE
        moved = {name.partition(".network.")[0] for name in update.before if _moved(update, name, ".network.")}
        targets = {name for name in update.before if _moved(update, name, ".target.")}
        assert moved == ({"critics"} if delayed else {"critics", "policy"})
        assert bool(targets) is not delayed


def _moved(update: Any, name: str, kind: str) -> bool:
    return kind in name and not np.array_equal(update.before[name], update.after[name])


@pytest.mark.key(
    "optimization.actor_learning_rate",
    "optimization.critic_learning_rate",
    "optimization.entropy_learning_rate",
    "initial_alpha",
    "target_entropy",
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"twin_q": False},
        {"initial_alpha": 0.1},
        {"target_entropy": -7.0},
        {"optimization": {"actor_learning_rate": 1e-3, "critic_learning_rate": 3e-3, "entropy_learning_rate": 1e-4}},
        {"grad_norm_clipping": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("env", [None, DISCRETE_ENV], ids=["continuous", "discrete"])
def test_an_update_of_sac_is_that_of_the_paper(env: str | None, changes: dict[str, Any]) -> None:
    learner, config = make_learner("SAC", env or CONTINUOUS_ENV, **changes), config_of("SAC", **changes)
    noise = None if env else drawn_noise(learner, (ROWS, 2), 2)
    update = learned(learner, make_batch(5, is_discrete=env is not None))
    expected, log_alpha = reference_of_sac(config, update, noise)
    assert distance(update, expected) < CLOSE
    assert update.after["temperature.network.log_alpha"] == pytest.approx(log_alpha, abs=1e-6)
    assert update.result.stats["alpha"] == pytest.approx(config.initial_alpha, rel=1e-5)


def test_priorities_are_the_mean_errors_of_both_critics() -> None:
    learner = make_learner("TD3", smooth_target_policy=False, tau=1.0)
    batch = make_batch(2)
    before, after = (
        learner.learn_on_batch(batch.with_columns(**{REWARDS: batch[REWARDS] + shift})) for shift in (0, 50)
    )
    assert before.td_errors is not None
    assert after.td_errors is not None
    assert after.td_errors == pytest.approx(50, abs=5)
    assert after.stats["mean_td_error"] == pytest.approx(float(after.td_errors.mean()), rel=1e-5)


@pytest.mark.parametrize("run", ["DDPG", "SAC"])
def test_a_loss_that_overflows_ends_the_trial_with_a_remedy(run: str) -> None:
    batch = make_batch().with_columns(**{REWARDS: np.full(ROWS, np.inf, np.float32)})
    with pytest.raises(TrialError, match=r"the losses are (nan|inf)") as caught:
        make_learner(run).learn_on_batch(batch)
    assert caught.value.hint is not None
    assert "lower lr" in caught.value.hint
