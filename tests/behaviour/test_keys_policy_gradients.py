"""The keys of A2C, A3C, PG, IMPALA and APPO through their agents; each test fails if its key is ignored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlexp.agents.agent import Agent
from rlexp.agents.torch.learner_process import ALONE
from rlexp.rollout.folds import IS_STEP, LOGP
from rlexp.sample_batch import OBS
from tests.lab import a2c, impala
from tests.lab.a2c import distance
from tests.lab.agents import (
    CountingPool,
    LearnersInThreads,
    assert_continues,
    checkpoint_of,
    train_until,
    updates_of,
    watched,
)
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV, episode_length, episode_terminates

each_agent = pytest.mark.parametrize("run", sorted(impala.CONFIGS))
FOLLOWED: dict[str, Any] = {"adam_epsilon": 1.0, "replay_proportion": 1.0, "replay_buffer_num_slots": 4, "lr": 0.1}
"""Old fragments, so that ratios are not 1. Adam takes no notice of a factor of all gradients, unless its epsilon is
large."""
WAITING: dict[str, Any] = {
    "num_sgd_iter": 2,
    "minibatch_buffer_size": 2,
    "replay_proportion": 0.5,
    "replay_buffer_num_slots": 3,
    "timesteps_per_iteration": 60,
    "sample_batch_size": 7,
}
"""For trials of IMPALA and APPO that end with fragments in each place where they may wait."""
MAKERS: list[partial[Any]] = [
    *(partial(a2c.make_agent, run) for run in a2c.AGENTS),
    *(partial(impala.make_agent, run) for run in impala.AGENTS),
]


@pytest.mark.key("entropy_coeff_schedule", "lr_schedule")
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.args[0])
def test_schedules_go_by_sampled_steps(make: partial[Agent[Any]]) -> None:
    keys: dict[str, Any] = {"entropy_coeff_schedule": [[0, 1.0], [80, 0.0]], "lr_schedule": [[0, 1e-2], [80, 0.0]]}
    updates = updates_of(make(COUNTING_ENV, **keys), 2)
    shares = [1 - min(update.num_steps_sampled, 80) / 80 for update in updates]
    assert [update.result.stats["cur_entropy_coeff"] for update in updates] == pytest.approx(shares)
    assert [update.result.stats["lr"] for update in updates] == pytest.approx([1e-2 * share for share in shares])
    assert 0 < shares[0] < 1


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.args[0])
def test_a_resumed_trial_learns_what_one_without_a_stop_learns(make: partial[Agent[Any]], tmp_path: Path) -> None:
    keys = WAITING if make.func is impala.make_agent else {}
    assert_continues(partial(make, COUNTING_ENV, **keys), tmp_path)


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
    agent = a2c.make_agent(run, "CartPole-v1", **keys)
    (update,) = updates_of(agent, 1)
    expected, figures = a2c.reference(agent.config, update)
    assert distance(update, expected) < 1e-5
    stats = update.result.stats
    assert {name: stats[name] for name in figures} == pytest.approx(figures, rel=1e-3, abs=1e-4)
    assert distance(update, a2c.reference(agent.config, update, **{key: other})[0]) > 1e-4


@pytest.mark.key("train_batch_size", "sample_batch_size")
def test_a2c_makes_a_step_for_each_train_batch() -> None:
    sizes = [len(update.batch) for update in updates_of(a2c.make_agent("A2C"), 3)]
    assert sizes == [a2c.TINY["train_batch_size"]] * 3
    (update,) = updates_of(a2c.make_agent("A2C", train_batch_size=2 * a2c.TINY["train_batch_size"]), 1)
    assert len(update.batch) == 2 * a2c.TINY["train_batch_size"]


@pytest.mark.key("train_batch_size", "sample_batch_size")
def test_a3c_makes_a_step_for_each_fragment() -> None:
    sizes = [len(update.batch) for update in updates_of(a2c.make_agent("A3C", sample_batch_size=5), 3)]
    assert sizes == [5 * a2c.NUM_ENVS] * 3
    assert (
        dict(a2c.make_agent("A3C").config.ineffective_keys())["train_batch_size"]
        == "A3C makes a step for each fragment"
    )


def test_the_workers_of_a3c_are_all_busy_and_each_fragment_is_learned_once() -> None:
    agent = a2c.make_agent("A3C", num_workers=3, pool=CountingPool())
    updates = watched(agent)
    train_until(agent, updates, 9)
    assert {len(update.batch) for update in updates} == {a2c.LENGTH * a2c.NUM_ENVS}
    learned = [tuple(row) for update in updates for row in update.batch["obs"].tolist()]
    assert len(set(learned)) == len(learned)
    assert len({env for env, _, _ in learned}) == 3 * a2c.NUM_ENVS


@pytest.mark.key("batch_mode", "gamma", "use_critic", "use_gae")
def test_pg_learns_from_the_returns_of_whole_episodes() -> None:
    """An episode of the env pays 1, 2, 3 ... and PG adds what follows, discounted, up to the episode's end."""
    agent = a2c.make_agent("PG", COUNTING_ENV, num_envs_per_worker=1, gamma=0.5)
    (update,) = updates_of(agent, 1)
    expected, _ = a2c.reference(agent.config, update)
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
        a2c.CONFIGS["PG"].model_validate({"batch_mode": "truncate_episodes"})
    a2c.CONFIGS["PG"].model_validate({"batch_mode": "truncate_episodes", "use_gae": True, "use_critic": True})


@pytest.mark.key("sample_async")
def test_sample_async_learns_with_the_weights_of_the_batch_before() -> None:
    ages = []
    for is_async in (False, True):
        agent = a2c.make_agent("A2C", num_workers=1, sample_async=is_async, timesteps_per_iteration=200)
        ages.append(agent.train()["info"]["weight_age"])
    assert ages[0] == 0 < ages[1]


@pytest.mark.key("model.vf_share_layers")
@pytest.mark.parametrize(("run", "shares"), [("A2C", True), ("A3C", True), ("PG", False)])
def test_a2c_shares_layers_by_default(run: str, shares: bool) -> None:
    assert a2c.make_agent(run, ENDLESS_ENV).policies.network.shares_torso is shares


@pytest.mark.key("vf_loss_coeff", "entropy_coeff", "grad_norm_clipping", "lr", "adam_epsilon", "vtrace")
@pytest.mark.key("vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold")
@each_agent
@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("vf_loss_coeff", 2.0, 0.1),
        ("entropy_coeff", 50.0, 0.0),
        ("grad_norm_clipping", 0.1, 10.0),
        ("lr", 0.3, 0.1),
        ("adam_epsilon", 1.0, 0.1),
        ("vtrace_clip_rho_threshold", 0.3, 1.0),
        ("vtrace_clip_pg_rho_threshold", 0.3, 1.0),
    ],
)
def test_a_step_of_vtrace_follows_the_equations(run: str, key: str, value: float, other: float) -> None:
    agent = impala.make_agent(run, "CartPole-v1", **FOLLOWED | {key: value})
    update = updates_of(agent, 3)[-1]
    expected, figures = impala.reference(agent.config, update)
    assert distance(update, expected) < 2e-5
    stats = update.result.stats
    assert {name: stats[name] for name in figures} == pytest.approx(figures, rel=1e-3, abs=1e-4)
    assert distance(update, impala.reference(agent.config, update, **{key: other})[0]) > 1e-4


@pytest.mark.key("num_learners")
@pytest.mark.parametrize("num_learners", [2, 5])
@pytest.mark.parametrize(
    ("run", "keys"),
    [
        ("IMPALA", {}),
        ("IMPALA", {"vtrace": False}),
        ("IMPALA", {"opt_type": "rmsprop", "model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}}),
        ("APPO", {"use_kl_loss": True, "target_update_frequency": 2}),
        ("APPO", {"vtrace": False}),
    ],
)
def test_several_learners_come_to_the_weights_and_figures_of_one(
    run: str, keys: dict[str, Any], num_learners: int
) -> None:
    """A train batch has four segments, so the fifth learner has none."""
    agent = impala.make_agent(run, "CartPole-v1", **FOLLOWED | keys)
    batches = [update.batch for update in updates_of(agent, 4)]
    make = agent.learner_maker(7)
    one, several = make("cpu", ALONE), LearnersInThreads(make, num_learners)
    for batch in batches:
        expected, found = one.learn_on_batch(batch).stats, several.learn_on_batch(batch).stats
        explained = {"vf_explained_var"}  # the mean over learners
        assert {name: found[name] for name in found.keys() - explained} == pytest.approx(
            {name: expected[name] for name in expected.keys() - explained}, rel=1e-4, abs=1e-5
        )
        first, *others = [learner.state_dict() for learner in several.learners]
        for name, array in one.state_dict().items():
            np.testing.assert_allclose(first[name], array, atol=1e-5, err_msg=name)
            assert all(other[name].tobytes() == first[name].tobytes() for other in others)


@pytest.mark.key("clip_param", "use_kl_loss", "kl_coeff")
@pytest.mark.parametrize("vtrace", [True, False])
@pytest.mark.parametrize(
    ("keys", "other"),
    [
        ({"clip_param": 0.01}, {"clip_param": 0.4}),
        ({"use_kl_loss": True, "kl_coeff": 20.0}, {"use_kl_loss": False}),
        ({"use_kl_loss": True, "kl_coeff": 20.0}, {"kl_coeff": 1.0}),
    ],
)
def test_the_loss_of_appo_follows_its_equations(vtrace: bool, keys: dict[str, Any], other: dict[str, Any]) -> None:
    passes: dict[str, Any] = {"num_sgd_iter": 3, "minibatch_buffer_size": 2}
    agent = impala.make_agent("APPO", "CartPole-v1", **FOLLOWED | {"vtrace": vtrace} | passes | keys)
    update = updates_of(agent, 5)[-1]
    expected, figures = impala.reference(agent.config, update)
    assert distance(update, expected) < 2e-5
    stats = update.result.stats
    assert {name: stats[name] for name in figures} == pytest.approx(figures, rel=1e-3, abs=1e-4)
    assert distance(update, impala.reference(agent.config, update, **other)[0]) > 1e-5


@pytest.mark.key("opt_type", "decay", "momentum", "epsilon")
@each_agent
@pytest.mark.parametrize(("key", "other"), [("decay", 0.99), ("momentum", 0.0), ("epsilon", 0.1)])
def test_rmsprop_moves_the_weights_as_torch_does(run: str, key: str, other: float) -> None:
    keys: dict[str, Any] = {"opt_type": "rmsprop", "decay": 0.9, "momentum": 0.5, "epsilon": 1.0, "num_sgd_iter": 2}
    agent = impala.make_agent(run, "CartPole-v1", **keys)
    update = updates_of(agent, 2)[-1]
    assert distance(update, impala.reference(agent.config, update)[0]) < 2e-5
    assert distance(update, impala.reference(agent.config, update, **{key: other})[0]) > 1e-4


@pytest.mark.key("vtrace", "lambda")
@each_agent
def test_without_vtrace_the_advantages_of_the_workers_are_learned(run: str) -> None:
    agent = impala.make_agent(run, "CartPole-v1", vtrace=False, **FOLLOWED | {"lambda": 0.5})
    update = updates_of(agent, 3)[-1]
    assert IS_STEP not in update.batch
    expected, _ = impala.reference(agent.config, update)
    assert distance(update, expected) < 2e-5
    ineffective = dict(agent.config.ineffective_keys())
    assert ineffective["vtrace_clip_rho_threshold"] == "vtrace is false"
    assert dict(impala.make_agent(run).config.ineffective_keys())["lambda"] == "vtrace is true"


@pytest.mark.key("train_batch_size", "sample_batch_size", "gamma")
@each_agent
def test_a_train_batch_is_fragments_with_the_observation_after_each(run: str) -> None:
    (update,) = updates_of(impala.make_agent(run, gamma=0.5), 1)
    is_step, length = update.batch[IS_STEP], impala.LENGTH
    assert np.flatnonzero(~is_step).tolist() == [length + index * (length + 1) for index in range(2 * impala.NUM_ENVS)]
    assert (update.batch["discounts"][is_step] == 0.5).all()
    steps = update.batch[OBS][:, 2]
    assert steps[: length + 1].tolist() == list(range(length + 1))
    assert update.num_steps_sampled == impala.TINY["train_batch_size"]


@pytest.mark.key("num_sgd_iter", "minibatch_buffer_size")
@each_agent
def test_batches_are_learned_several_times_in_turns(run: str) -> None:
    updates = updates_of(impala.make_agent(run, num_sgd_iter=2), 6)
    firsts = [float(update.batch[LOGP].sum()) for update in updates]
    assert firsts[0] == firsts[1] != firsts[2] == firsts[3]
    ring = updates_of(impala.make_agent(run, num_sgd_iter=3, minibatch_buffer_size=2), 6)
    firsts = [float(update.batch[LOGP].sum()) for update in ring]
    assert firsts[1] == firsts[3]
    assert firsts[2] == firsts[4]


@pytest.mark.key("target_update_frequency", "tau", "kl_target")
def test_the_target_network_moves_every_so_many_updates() -> None:
    keys: dict[str, Any] = {"num_sgd_iter": 2, "target_update_frequency": 2, "tau": 0.25, "use_kl_loss": True}
    updates = updates_of(impala.make_agent("APPO", "CartPole-v1", **keys, kl_target=1e9), 8)
    name = "policy_head.weight"
    for number, update in enumerate(updates, start=1):
        before, after = update.before[f"target.{name}"], update.after[f"target.{name}"]
        moved = before + 0.25 * (update.after[f"network.{name}"] - before) if number % 4 == 0 else before
        np.testing.assert_allclose(after, moved, rtol=1e-5, atol=1e-7)
    coefficients = [update.result.stats["cur_kl_coeff"] for update in updates]
    assert coefficients == [1.0] * 4 + [0.5] * 4
    assert updates[-1].after["target_updates"] == 2


@pytest.mark.key("use_kl_loss", "target_update_frequency", "tau")
@pytest.mark.parametrize(
    ("keys", "without_effect"),
    [
        ({"use_kl_loss": True}, {"use_kl_loss", "kl_coeff", "kl_target"}),
        ({"use_kl_loss": True, "tau": 0.5}, set()),
        ({"use_kl_loss": True, "num_sgd_iter": 2}, set()),
        ({"use_kl_loss": True, "vtrace": False}, {"tau"}),
        ({"vtrace": False}, {"kl_coeff", "kl_target", "tau", "target_update_frequency"}),
    ],
)
def test_keys_without_effect_are_those_that_change_no_update(keys: dict[str, Any], without_effect: set[str]) -> None:
    """A copy of the learned network after each update does not diverge from it."""
    others = {"use_kl_loss", "kl_coeff", "kl_target", "tau", "target_update_frequency"}
    agent = impala.make_agent("APPO", "CartPole-v1", **keys)
    assert dict(agent.config.ineffective_keys()).keys() & others == without_effect
    if "kl_coeff" in without_effect:
        ends = [updates_of(impala.make_agent("APPO", "CartPole-v1", **keys, kl_coeff=kl), 3)[-1].after for kl in (1, 9)]
        assert all(np.array_equal(array, ends[1][name]) for name, array in ends[0].items() if name != "kl_coeff")


@pytest.mark.key("max_policy_lag")
def test_a_limit_that_leaves_out_passes_is_named() -> None:
    keys: dict[str, Any] = {"num_sgd_iter": 10, "max_policy_lag": 4}
    (caution,) = impala.CONFIGS["APPO"].model_validate(keys).cautions()
    assert caution.key == "max_policy_lag"
    assert "at most 5 of the 10 passes" in caution.message
    agent = impala.make_agent("APPO", **keys)
    updates_of(agent, 12)
    counters = agent.optimizer.counters
    assert counters.num_steps_trained <= 5 * counters.num_steps_sampled
    assert not list(impala.CONFIGS["APPO"].model_validate({**keys, "max_policy_lag": 9}).cautions())


@pytest.mark.key("replay_proportion", "replay_buffer_num_slots")
@each_agent
def test_old_fragments_are_learned_again(run: str) -> None:
    agent = impala.make_agent(run, replay_proportion=1.0, replay_buffer_num_slots=2)
    updates_of(agent, 5)
    counters = agent.optimizer.counters
    assert counters.num_steps_trained > 1.5 * counters.num_steps_sampled


@pytest.mark.key("learner_queue_size", "max_sample_requests_in_flight_per_worker", "broadcast_interval")
@each_agent
def test_the_workers_calls_the_queue_and_the_broadcasts_are_as_many_as_told(run: str) -> None:
    keys: dict[str, Any] = {
        "learner_queue_size": 3,
        "max_sample_requests_in_flight_per_worker": 3,
        "broadcast_interval": 4,
    }
    agent = impala.make_agent(run, num_workers=2, pool=CountingPool(), **keys)
    updates = watched(agent)
    assert agent.optimizer.stats()["learner_queue_capacity"] == 3
    train_until(agent, updates, 9)
    assert agent.source._turns._queue_depth == 3  # type: ignore[attr-defined]
    assert agent.source.num_weight_syncs <= 2 * (1 + len(updates) // 4)


@pytest.mark.key("max_policy_lag")
@each_agent
def test_nothing_older_than_the_limit_is_learned_by_workers_in_threads(run: str) -> None:
    agent = impala.make_agent(run, num_workers=2, pool=CountingPool(), max_policy_lag=1, num_sgd_iter=2)
    rows = [agent.train() for _ in range(20)]
    lags = [row["info"]["policy_lag"] for row in rows]
    assert 0 < max(lag["max"] for lag in lags) <= 1
    assert rows[-1]["info"]["num_steps_trained"] > rows[-1]["info"]["num_steps_sampled"]


@pytest.mark.key("max_policy_lag")
def test_a_limit_does_not_go_with_whole_episodes_or_rarer_broadcasts() -> None:
    for keys in ({"batch_mode": "complete_episodes"}, {"broadcast_interval": 3}):
        with pytest.raises(ValidationError, match="keys do not fit together"):
            impala.CONFIGS["APPO"].model_validate({"max_policy_lag": 2, **keys})
    impala.CONFIGS["APPO"].model_validate({"max_policy_lag": 3, "broadcast_interval": 3})


@pytest.mark.key("batch_mode")
@each_agent
def test_whole_episodes_are_segments(run: str) -> None:
    agent = impala.make_agent(run, COUNTING_ENV, batch_mode="complete_episodes", train_batch_size=5)
    (update,) = updates_of(agent, 1)
    last = np.flatnonzero(~update.batch[IS_STEP]) - 1
    ends = [(episode_length(int(episode)), episode_terminates(int(episode))) for episode in update.batch[OBS][last, 1]]
    assert update.batch[OBS][last, 2].tolist() == [length - 1 for length, _ in ends]
    assert (update.batch["discounts"][last] == 0).tolist() == [terminated for _, terminated in ends]
    assert len(last) >= 1


@each_agent
def test_rows_of_another_kind_are_not_learned_after_a_restart(run: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"sample_batch_size": 7, "timesteps_per_iteration": 7, "train_batch_size": 20}
    agent = impala.make_agent(run, COUNTING_ENV, **keys)
    agent.train()
    assert agent.optimizer.state()["collected"]
    resumed = impala.make_agent(run, COUNTING_ENV, checkpoint=checkpoint_of(agent, tmp_path), vtrace=False, **keys)
    for _ in range(3):
        resumed.train()
    assert resumed.optimizer.num_updates > 0


@pytest.mark.key("model.vf_share_layers")
@each_agent
def test_layers_are_shared_by_default(run: str) -> None:
    assert impala.make_agent(run, ENDLESS_ENV).policies.network.shares_torso
    separate = {"fcnet_hiddens": [8], "vf_share_layers": False}
    assert not impala.make_agent(run, ENDLESS_ENV, model=separate).policies.network.shares_torso


@each_agent
def test_actions_that_are_numbers_are_learned(run: str) -> None:
    updates = updates_of(impala.make_agent(run, "Pendulum-v1", num_sgd_iter=3), 3)
    assert all(update.largest_change() > 0 for update in updates)
    assert abs(updates[0].result.stats["kl"]) < 1e-6
    assert updates[1].result.stats["kl"] > 1e-6
