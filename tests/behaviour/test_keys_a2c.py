"""The keys of A2C, A3C and PG through their agents; each test fails if its key is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlexp.runs.checkpoint_contents import read_checkpoint
from tests.lab.a2c import AGENTS, CONFIGS, LENGTH, NUM_ENVS, TINY, distance, make_agent, reference
from tests.lab.agents import CountingPool, train_until, updates_of, watched, weights_of
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV
from tests.unit.agents.test_agent import assert_same_bits

each_agent = pytest.mark.parametrize("run", sorted(AGENTS))


@pytest.mark.key("vf_loss_coeff", "entropy_coeff", "grad_norm_clipping", "lr", "adam_epsilon")
@pytest.mark.parametrize("run", ["A2C", "A3C"])
@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("vf_loss_coeff", 2.0, 0.1),
        ("entropy_coeff", 50.0, 0.0),
        ("grad_norm_clipping", 0.1, 10.0),
        ("lr", 1e-3, 1e-2),
        ("adam_epsilon", 1.0, 0.1),
    ],
)
def test_a_step_follows_the_equations(run: str, key: str, value: float, other: float) -> None:
    # Adam takes no notice of a factor of all gradients, unless its epsilon is large.
    keys: dict[str, Any] = {"adam_epsilon": 1.0, key: value}
    agent = make_agent(run, "CartPole-v1", **keys)
    (update,) = updates_of(agent, 1)
    expected, figures = reference(agent.config, update)
    assert distance(update, expected) < 1e-5
    stats = update.result.stats
    assert {name: stats[name] for name in figures} == pytest.approx(figures, rel=1e-3, abs=1e-4)
    assert distance(update, reference(agent.config, update, **{key: other})[0]) > 1e-4


@pytest.mark.key("train_batch_size", "sample_batch_size")
def test_a2c_makes_a_step_for_each_train_batch() -> None:
    sizes = [len(update.batch) for update in updates_of(make_agent("A2C"), 3)]
    assert sizes == [TINY["train_batch_size"]] * 3
    (update,) = updates_of(make_agent("A2C", train_batch_size=2 * TINY["train_batch_size"]), 1)
    assert len(update.batch) == 2 * TINY["train_batch_size"]


@pytest.mark.key("train_batch_size", "sample_batch_size")
def test_a3c_makes_a_step_for_each_fragment() -> None:
    sizes = [len(update.batch) for update in updates_of(make_agent("A3C", sample_batch_size=5), 3)]
    assert sizes == [5 * NUM_ENVS] * 3
    assert dict(make_agent("A3C").config.ineffective_keys())["train_batch_size"] == "A3C makes a step for each fragment"


def test_the_workers_of_a3c_are_all_busy_and_each_fragment_is_learned_once() -> None:
    agent = make_agent("A3C", num_workers=3, pool=CountingPool())
    updates = watched(agent)
    train_until(agent, updates, 9)
    assert {len(update.batch) for update in updates} == {LENGTH * NUM_ENVS}
    learned = [tuple(row) for update in updates for row in update.batch["obs"].tolist()]
    assert len(set(learned)) == len(learned)
    assert len({env for env, _, _ in learned}) == 3 * NUM_ENVS


@pytest.mark.key("batch_mode", "gamma", "use_critic", "use_gae")
def test_pg_learns_from_the_returns_of_whole_episodes() -> None:
    """An episode of the env pays 1, 2, 3 ... and PG adds what follows, discounted, up to the episode's end."""
    agent = make_agent("PG", COUNTING_ENV, num_envs_per_worker=1, gamma=0.5)
    (update,) = updates_of(agent, 1)
    expected, _ = reference(agent.config, update)
    assert distance(update, expected) < 1e-5
    steps = update.batch["obs"][:, 2] + 1
    returns, following = [], 0.0
    for index in range(len(steps) - 1, -1, -1):
        is_last = index + 1 == len(steps) or steps[index + 1] == 1
        following = float(steps[index]) + (0.0 if is_last else 0.5 * following)
        returns.append(following)
    assert update.batch["advantages"] == pytest.approx(returns[::-1], rel=1e-5)


@pytest.mark.key("batch_mode", "use_gae", "use_critic")
def test_pg_needs_whole_episodes_unless_it_has_a_critic() -> None:
    with pytest.raises(ValidationError, match="keys do not fit together"):
        CONFIGS["PG"].model_validate({"batch_mode": "truncate_episodes"})
    CONFIGS["PG"].model_validate({"batch_mode": "truncate_episodes", "use_gae": True, "use_critic": True})


@pytest.mark.key("entropy_coeff_schedule", "lr_schedule")
@each_agent
def test_schedules_go_by_sampled_steps(run: str) -> None:
    keys: dict[str, Any] = {"entropy_coeff_schedule": [[0, 1.0], [80, 0.0]], "lr_schedule": [[0, 1e-2], [80, 0.0]]}
    agent = make_agent(run, COUNTING_ENV, **keys)
    updates = updates_of(agent, 2)
    shares = [1 - min(update.num_steps_sampled, 80) / 80 for update in updates]
    assert [update.result.stats["cur_entropy_coeff"] for update in updates] == pytest.approx(shares)
    assert [update.result.stats["lr"] for update in updates] == pytest.approx([1e-2 * share for share in shares])
    assert 0 < shares[0] < 1


@pytest.mark.key("sample_async")
def test_sample_async_learns_with_the_weights_of_the_batch_before() -> None:
    ages = []
    for is_async in (False, True):
        agent = make_agent("A2C", num_workers=1, sample_async=is_async, timesteps_per_iteration=200)
        ages.append(agent.train()["info"]["weight_age"])
    assert ages[0] == 0 < ages[1]


@each_agent
def test_a_resumed_trial_learns_what_one_without_a_stop_learns(run: str, tmp_path: Path) -> None:
    whole, first = make_agent(run, COUNTING_ENV), make_agent(run, COUNTING_ENV)
    for agent in (whole, first):
        agent.train()
    path = first.save(tmp_path / "checkpoint_000001", {})
    resumed = make_agent(run, COUNTING_ENV, checkpoint=read_checkpoint(path))
    for agent in (whole, resumed):
        agent.train()
    assert_same_bits(weights_of(whole), weights_of(resumed))


@pytest.mark.key("model.vf_share_layers")
@pytest.mark.parametrize(("run", "shares"), [("A2C", True), ("A3C", True), ("PG", False)])
def test_a2c_shares_layers_by_default(run: str, shares: bool) -> None:
    assert make_agent(run, ENDLESS_ENV).policies.network.shares_torso is shares
