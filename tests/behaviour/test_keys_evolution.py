"""The keys of ES and ARS through their agents; each test fails if its key is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.runs.checkpoint_contents import read_checkpoint
from tests.lab.agents import poll, updates_of, watched, weights_of
from tests.lab.envs import CONTINUOUS_ENV, COUNTING_ENV
from tests.lab.evolution import AGENTS, CONFIGS, PAYING_ENV, STEPS, flat, make_agent, noises, pays, reference
from tests.lab.parallel import RELAY
from tests.lab.user_callbacks import RECORDER
from tests.unit.agents.test_agent import assert_same_bits

each_agent = pytest.mark.parametrize("run", sorted(AGENTS))


@pytest.mark.key("lr", "l2_coeff", "adam_epsilon", "grad_norm_clipping", "rollouts_used")
@pytest.mark.parametrize(
    ("run", "key", "value", "other"),
    [
        ("ES", "lr", 0.1, 0.01),
        ("ES", "l2_coeff", 0.5, 0.0),
        ("ES", "adam_epsilon", 1.0, 1e-8),
        ("ES", "grad_norm_clipping", 1e-3, None),
        ("ARS", "lr", 0.1, 0.01),
        ("ARS", "rollouts_used", 2, 4),
        ("ARS", "rollouts_used", 2, None),
        ("ARS", "grad_norm_clipping", 1e-3, None),
    ],
)
def test_a_step_follows_the_equations(run: str, key: str, value: Any, other: Any) -> None:
    keys: dict[str, Any] = {"adam_epsilon": 0.1} if run == "ES" else {}
    agent = make_agent(run, **{**keys, key: value})
    (update,) = updates_of(agent, 1)
    assert flat(update.after) == pytest.approx(reference(run, agent.config, update), abs=1e-6)
    unlike = CONFIGS[run].model_validate({**agent.config.model_dump(), key: other})
    assert np.abs(flat(update.after) - reference(run, unlike, update)).max() > 1e-5


@pytest.mark.key("noise_stdev")
@each_agent
def test_both_episodes_of_a_direction_are_played_with_its_noise(run: str) -> None:
    agent = make_agent(run, noise_stdev=0.5, action_noise_std=0)
    (update,) = updates_of(agent, 1)
    theta = flat(update.before)
    for noise, returns in zip(noises(update.batch["seeds"], 3), update.batch["returns"], strict=True):
        expected = [pays(theta + 0.5 * noise), pays(theta - 0.5 * noise)]
        assert returns == pytest.approx(expected, abs=1e-5)


@pytest.mark.key("action_noise_std")
def test_numbers_get_noise_in_episodes_with_noise() -> None:
    agent = make_agent("ES", noise_stdev=1e-6, action_noise_std=0.5, episodes_per_batch=400)
    (update,) = updates_of(agent, 1)
    returns = update.batch["returns"] - pays(flat(update.before))
    assert returns.std() == pytest.approx(0.5 * STEPS**0.5, rel=0.2)
    assert returns.mean() == pytest.approx(0.0, abs=0.2)


@pytest.mark.key("offset", "clip_rewards")
@pytest.mark.parametrize(("keys", "learned"), [({}, 6.0), ({"offset": 0.5}, 4.5), ({"clip_rewards": 2.0}, 5.0)])
def test_returns_are_learned_from_with_the_offset_taken_off(keys: dict[str, Any], learned: float) -> None:
    """The first episode of CountingEnv pays 1, 2 and 3; what is reported stays as it is."""
    ((batch, info),) = poll(make_agent("ARS", COUNTING_ENV, num_rollouts=1, num_envs_per_worker=3, **keys))
    assert batch["returns"].tolist() == [[learned, learned]]
    assert info.episodes.returns.tolist() == [6.0, 6.0, 6.0]


@pytest.mark.key("episodes_per_batch", "num_rollouts", "num_envs_per_worker")
@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize(("run", "key", "pairs"), [("ES", "episodes_per_batch", 6), ("ARS", "num_rollouts", 6)])
def test_an_update_has_exactly_so_many_directions(run: str, key: str, pairs: int, num_envs: int) -> None:
    keys: dict[str, Any] = {key: pairs if run == "ARS" else 2 * pairs, "num_envs_per_worker": num_envs}
    updates = updates_of(make_agent(run, COUNTING_ENV, **keys), 2)
    seeds = [seed for update in updates for seed in update.batch["seeds"].tolist()]
    assert len(seeds) == len(set(seeds)) == 2 * pairs


@pytest.mark.key("train_batch_size")
def test_es_plays_more_episodes_while_env_steps_are_missing() -> None:
    (update,) = updates_of(make_agent("ES", episodes_per_batch=4, train_batch_size=10 * STEPS), 1)
    # a call has two directions, of four episodes; the first call has one without noise too
    assert len(update.batch) == 4
    (update,) = updates_of(make_agent("ARS", num_rollouts=2, train_batch_size=10 * STEPS), 1)
    assert len(update.batch) == 2


@pytest.mark.key("eval_prob", "metrics_smoothing_episodes")
@each_agent
def test_only_episodes_without_noise_are_reported(run: str) -> None:
    agent = make_agent(run, noise_stdev=5.0, eval_prob=0.0)
    before = pays(flat({f"network.{name}": array for name, array in weights_of(agent).items()}))
    row = agent.train()
    assert row["episode_reward_min"] == row["episode_reward_max"] == pytest.approx(before, abs=1e-5)
    assert row["episodes_total"] == 8 + 1
    assert make_agent(run, eval_prob=1.0).train()["episodes_total"] == 8 + 4
    assert agent.config.metrics_smoothing_episodes == 10


def test_own_metrics_are_those_of_episodes_without_noise() -> None:
    ((_, info),) = poll(make_agent("ARS", COUNTING_ENV, num_rollouts=2, callbacks=RECORDER))
    assert info.episodes.lengths.tolist() == [3, 3, 7, 7, 12]  # the last one is without noise
    assert info.episodes.own_metrics["steps"].tolist() == [12]
    ((_, info),) = poll(make_agent("ARS", RELAY, num_rollouts=2, callbacks=RECORDER))
    assert len(info.episodes.lengths) == 5
    assert info.episodes.own_metrics["steps"].tolist() == [3, 5, 3]  # of each of the agents


def test_an_episode_counts_however_long_it_is() -> None:
    """The episodes of a call are chosen before they are played, so short ones do not come first."""
    samples = [poll(make_agent("ARS", COUNTING_ENV, num_rollouts=2, num_envs_per_worker=2))[0] for _ in range(2)]
    for batch, info in samples:
        # each env of two plays 3 and 7 steps; the first to end plays 12 steps for the episode without noise
        assert info.episodes.lengths.tolist() == [3, 3, 7, 7, 12]
        assert batch["returns"].tolist() == [[6.0, 6.0], [28.0, 28.0]]
        assert info.num_env_steps == 2 * (3 + 7 + 12)  # the other env steps too until all have ended


@pytest.mark.key("clip_actions", "normalize_actions")
def test_actions_are_brought_within_the_bounds() -> None:
    keys: dict[str, Any] = {"env_config": {"limit": 0.5}, "noise_stdev": 1e3}
    ((clipped, _),) = poll(make_agent("ARS", num_rollouts=1, **keys))
    assert set(np.abs(clipped["returns"]).ravel()) <= {0.5 * STEPS, 0.5 * (STEPS - 2)}
    ((free, _),) = poll(make_agent("ARS", num_rollouts=1, **keys, clip_actions=False))
    assert np.abs(free["returns"]).min() > STEPS
    config = CONFIGS["ES"].model_validate({"normalize_actions": True})
    assert config.continuous_actions == "normalized"


@pytest.mark.key("lr_schedule")
@each_agent
def test_schedules_go_by_sampled_steps(run: str) -> None:
    updates = updates_of(make_agent(run, lr_schedule=[[0, 1e-2], [100, 0.0]]), 2)
    shares = [1 - min(update.num_steps_sampled, 100) / 100 for update in updates]
    assert [update.result.stats["lr"] for update in updates] == pytest.approx([1e-2 * share for share in shares])
    assert 0 < shares[1] < shares[0] < 1


@pytest.mark.key("observation_filter")
@each_agent
def test_a_filter_is_part_of_what_is_played_and_shared(run: str) -> None:
    """Observations of the paying env are standardised: the first number, always 1, becomes 0."""
    agent = make_agent(run, observation_filter="MeanStdFilter", noise_stdev=0.5, action_noise_std=0)
    agent.train()
    (row,) = updates_of(agent, 1)
    moments = agent.filters.of_evaluations()
    assert moments is not None
    assert moments.mean[0] == 1.0
    for noise, returns in zip(noises(row.batch["seeds"], 3), row.batch["returns"], strict=True):
        changed = flat(row.before) + 0.5 * noise
        assert returns[0] != pytest.approx(pays(changed), abs=1e-3)


@pytest.mark.key("sample_batch_size", "gamma", "explore", "sample_async", "batch_mode")
@each_agent
def test_keys_of_single_steps_have_no_effect(run: str) -> None:
    ineffective = dict(make_agent(run).config.ineffective_keys())
    assert {"sample_batch_size", "gamma", "explore", "sample_async", "batch_mode"} <= set(ineffective)
    assert ("train_batch_size" in ineffective) == (run == "ARS")


@each_agent
@pytest.mark.parametrize("env", [PAYING_ENV, CONTINUOUS_ENV])
def test_a_resumed_trial_learns_what_one_without_a_stop_learns(run: str, env: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"observation_filter": "MeanStdFilter", "action_noise_std": 0.1, "eval_prob": 0.5}
    whole, first = (make_agent(run, env, **keys) for _ in range(2))
    whole.train()
    first.train(should_stop=lambda: first.optimizer.counters.num_steps_sampled > 0)  # within a train batch
    path = first.save(tmp_path / "checkpoint_000001", {})
    resumed = make_agent(run, env, checkpoint=read_checkpoint(path), **keys)
    while resumed.optimizer.num_updates < 3:
        resumed.train()
    while whole.optimizer.num_updates < 3:
        whole.train()
    assert_same_bits(weights_of(whole), weights_of(resumed))


@pytest.mark.key("num_workers")
@each_agent
def test_all_workers_play_and_an_update_has_all_their_directions(run: str) -> None:
    agent = make_agent(run, num_workers=2, num_envs_per_worker=1)
    updates = watched(agent)
    agent.train()
    assert len(updates[0].batch) == 4
    assert len(set(updates[0].batch["seeds"].tolist())) == 4
