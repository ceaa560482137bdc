"""PPO learns in small what the observation says, with each of its distributions; and fails with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.errors import TrialError
from tests.envs import IDENTITY_ENV, PIXEL_ENV
from tests.unit.agents.ppo.agents import MATCHING_ENV, make_agent
from tests.unit.agents.test_going_on import small_images

CHOICES = {"env_config": {"space": "multi-discrete"}}
NUMBERS = {"env_config": {"space": "box"}}
FREE_AND_SHARED = {"model": {"fcnet_hiddens": [16], "free_log_std": True, "vf_share_layers": True}}


@pytest.mark.parametrize(
    ("env", "changes", "first", "goal"),
    [
        (IDENTITY_ENV, {}, 0.75, 0.95),
        (MATCHING_ENV, CHOICES, 0.85, 0.95),
        (MATCHING_ENV, NUMBERS, 0.8, 0.9),
        (MATCHING_ENV, {**NUMBERS, **FREE_AND_SHARED}, 0.8, 0.9),
    ],
    ids=["Discrete", "MultiDiscrete", "Box", "Box with free deviations and a shared torso"],
)
def test_right_action_is_learned(env: str, changes: dict[str, Any], first: float, goal: float) -> None:
    """The best of all actions that do not depend on the observation pay .25, .75 and .75."""
    agent = make_agent(env, changes)
    rewards = [agent.train()["episode_reward_mean"]]
    while rewards[-1] < goal and len(rewards) < 20:
        rewards.append(agent.train()["episode_reward_mean"])
    agent.stop()
    assert rewards[0] < first
    assert rewards[-1] >= goal


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rewards_that_overflow_the_loss_end_the_trial_with_a_remedy(num_workers: int) -> None:
    env_config = {"space": "multi-discrete", "scale": 1e30}
    agent = make_agent(MATCHING_ENV, {"env_config": env_config, "num_workers": num_workers})
    with pytest.raises(TrialError, match=r"the loss is (nan|inf) and its gradient") as caught:
        agent.train()
    agent.stop()
    assert caught.value.hint is not None
    assert "clip_rewards" in caught.value.hint


@pytest.mark.parametrize(
    ("env", "keys"),
    [(IDENTITY_ENV, {}), (MATCHING_ENV, NUMBERS), (PIXEL_ENV, small_images(32))],
    ids=["Discrete", "Box", "images"],
)
def test_a_fragment_that_only_resets_adds_no_rows(env: str, keys: dict[str, Any]) -> None:
    """Episodes of one step, in fragments of one step: each second fragment is the reset."""
    short = {"num_envs_per_worker": 1, "sample_batch_size": 1, "train_batch_size": 8, "sgd_minibatch_size": 4}
    agent = make_agent(env, {**keys, **short, "timesteps_per_iteration": 0})
    row = agent.train()
    agent.stop()
    assert row["timesteps_total"] == agent.optimizer.counters.num_steps_trained == 4
