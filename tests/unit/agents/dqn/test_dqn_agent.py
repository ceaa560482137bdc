"""The DQN agent in one thread, on envs whose answers are known.

The order of seats on the ladder of ε.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents import iteration
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.learner import DQNLearner
from rlexp.agents.dqn.players import ladder_places, ladder_places_of_envs
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.errors import EnvError, TrialError, UsageError
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.policy import LearnResult, PipelinedLearner
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.sample_batch import Array, SampleBatch
from tests.lab.dqn import BATCH_SIZE, make_batch, make_learner, read_only
from tests.lab.envs import CONTINUOUS_ENV, COUNTING_ENV, ENDLESS_ENV, IDENTITY_ENV, RAISING_ENV

SMALL: Mapping[str, Any] = {
    "model": ModelConfig(fcnet_hiddens=(16,)),
    "hiddens": (16,),
    "lr": 5e-3,
    "sample_batch_size": 4,
    "train_batch_size": 32,
    "buffer_size": 1000,
    "learning_starts": 64,
    "schedule_max_timesteps": 1000,
    "exploration_fraction": 0.5,
    "timesteps_per_iteration": 200,
    "min_iter_time_s": 0.0,
}


def make_agent(env: str = IDENTITY_ENV, seed: int = 0, **changes: Any) -> DQNAgent[DQNConfig]:
    return DQNAgent(env, DQNConfig(**{**SMALL, **changes}), InlineTaskPool(), seed)


def learner_state(agent: DQNAgent[DQNConfig]) -> dict[str, bytes]:
    with agent.optimizer.paused() as learner:
        return {name: array.tobytes() for name, array in learner.state_dict().items()}


def weights_after(seed: int, **changes: Any) -> dict[str, bytes]:
    agent = make_agent(seed=seed, **changes)
    agent.train()
    agent.stop()
    with agent.optimizer.paused() as learner:
        return {name: array.tobytes() for name, array in learner.get_weights().items()}


@pytest.mark.parametrize("parameter_noise", [False, True])
def test_solves_the_identity_env(parameter_noise: bool) -> None:
    agent = make_agent(parameter_noise=parameter_noise)
    started = time.monotonic()
    iterations = 0
    while (mean := agent.evaluate(50).returns.mean()) < 1.0:
        assert iterations < 15, f"mean return {mean} after {iterations} iterations"
        agent.train()
        iterations += 1
    assert iterations > 0, "solved before it learned"
    assert time.monotonic() - started < 30.0
    agent.stop()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_row_of_results_by_hand(num_workers: int) -> None:
    agent = make_agent(COUNTING_ENV, num_workers=num_workers, num_envs_per_worker=3, sample_batch_size=24)
    row = agent.train()
    # 24 steps of an env are episodes of 3, 7 and 12 steps and the two resets between them.
    fragment, num_workers = 3 * 22, max(num_workers, 1)
    fragments = num_workers * math.ceil(200 / (fragment * num_workers))
    assert row["training_iteration"] == 1
    assert row["timesteps_total"] == row["timesteps_this_iter"] == row["info"]["num_steps_sampled"]
    assert row["timesteps_total"] >= 200
    assert row["episodes_total"] == row["episodes_this_iter"] >= fragments * 9 - 9
    assert row["episode_reward_min"] == 6.0
    assert row["episode_reward_max"] == 78.0
    assert row["episode_reward_mean_all"] == row["episode_reward_mean"]
    assert set(row["info"]["exploration_per_worker"]) == {str(index) for index in range(num_workers)}
    agent.stop()


def test_an_iteration_that_is_to_stop_at_once_has_steps_of_its_own() -> None:
    agent = make_agent(timesteps_per_iteration=10**9)
    totals = [agent.train(should_stop=lambda: True)["timesteps_total"] for _ in range(3)]
    assert 0 < totals[0] < totals[1] < totals[2]
    agent.stop()


@pytest.mark.parametrize("changes", [{}, {"noisy": True}, {"soft_q": True}, {"parameter_noise": True}], ids=str)
def test_the_same_seed_gives_the_same_weights_bit_by_bit_and_another_does_not(changes: dict[str, Any]) -> None:
    first, again, other = (weights_after(seed, **changes) for seed in (1, 1, 2))
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_epsilon_falls_with_the_steps_sampled() -> None:
    agent = make_agent(exploration_final_eps=0.1)
    seen = [agent.stats()["max_exploration"]] + [agent.train()["info"]["max_exploration"] for _ in range(4)]
    assert seen[0] == 1.0
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == pytest.approx(0.1)
    assert agent.reported_epsilon() == math.inf
    agent.stop()


def test_evaluation_is_greedy_and_leaves_training_alone() -> None:
    agent = make_agent(COUNTING_ENV)
    before = learner_state(agent)
    played, again = agent.evaluate(10), agent.evaluate(10)
    assert sorted(played.lengths.tolist()) == [3] * 8 + [7] * 2
    assert played.returns.tolist() == again.returns.tolist()
    assert agent.optimizer.counters.num_steps_sampled == 0
    assert learner_state(agent) == before
    agent.stop()


def test_a_checkpoint_goes_on_with_weights_counters_and_iterations(tmp_path: Path) -> None:
    first = make_agent()
    row = [first.train() for _ in range(2)][-1]
    path = first.save(tmp_path / "checkpoint_000002", {"note": "by a test"})
    state = learner_state(first)
    first.stop()
    restored = DQNAgent(IDENTITY_ENV, first.config, InlineTaskPool(), 5, read_checkpoint(path))
    assert learner_state(restored) == state
    epsilon = restored.stats()["max_exploration"]
    next_row = restored.train()
    assert epsilon == pytest.approx(row["info"]["max_exploration"])
    assert next_row["training_iteration"] == 3
    assert next_row["timesteps_total"] == row["timesteps_total"] + next_row["timesteps_this_iter"]
    assert next_row["episodes_total"] == row["episodes_total"] + next_row["episodes_this_iter"]
    assert next_row["time_total_s"] > row["time_total_s"]
    restored.stop()


def test_an_env_that_it_cannot_play_is_refused() -> None:
    with pytest.raises(UsageError, match="DQN, APEX and PQN need a Discrete one"):
        make_agent(CONTINUOUS_ENV)


def test_the_error_of_an_env_surfaces() -> None:
    agent = make_agent(RAISING_ENV)
    with pytest.raises(EnvError, match=r"tests/lab/envs.py:\d+ in step: RuntimeError: this env raises"):
        agent.train()
    agent.stop()


def test_training_without_samples_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(ENDLESS_ENV)
    monkeypatch.setattr(iteration, "STALL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(agent.optimizer, "step", lambda should_stop: None)
    with pytest.raises(TrialError, match="no worker delivered a sample"):
        agent.train()
    agent.stop()


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13, 100])
def test_ladder_places_are_each_given_once(number: int) -> None:
    assert sorted(ladder_places(number)) == list(range(number))


def test_first_player_explores_least_and_the_second_is_far_from_it() -> None:
    assert ladder_places(8) == (7, 3, 5, 1, 6, 2, 4, 0)
    assert ladder_places(1) == (0,)


def test_any_number_of_first_players_spans_the_ladder() -> None:
    order = ladder_places(16)
    for present in range(2, 16):
        taken = sorted(order[:present])
        gaps = [after - before for before, after in pairwise(taken)]
        assert max([*gaps, taken[0]]) <= 2 * 16 / present


def test_ladder_places_of_envs_are_each_given_once() -> None:
    given = ladder_places_of_envs(3, 4)
    assert sorted(rung for player in given for rung in player) == list(range(12))
    assert all(max(player) - min(player) == 9 for player in given)


def target_is_a_copy(learner: DQNLearner) -> bool:
    state = learner.state_dict()
    names = [name.removeprefix("network.") for name in state if name.startswith("network.")]
    assert names
    return all(np.array_equal(state[f"network.{name}"], state[f"target.{name}"]) for name in names)


def td_errors_of(learner: DQNLearner, batch: SampleBatch) -> Array:
    """Learn on ``batch``; return its TD errors, which a DQN learner always reports."""
    found = learner.learn_on_batch(batch).td_errors
    assert found is not None
    return found


def as_bytes(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def test_td_errors_are_measured_before_the_update_and_never_negative() -> None:
    # At the update's end they would be those of the next one.
    learner, again, batch = make_learner(lr=1e-2), make_learner(lr=1e-9), make_batch()
    first = td_errors_of(learner, batch)
    assert first.shape == (BATCH_SIZE,)
    assert (first >= 0).all()
    assert first.tolist() == td_errors_of(again, batch).tolist()
    assert np.abs(first - td_errors_of(learner, batch)).max() > 1e-3


def test_td_errors_stay_as_they_were_when_it_goes_on() -> None:
    learner = make_learner()
    first = td_errors_of(learner, make_batch(seed=0))
    before = first.copy()
    learner.learn_on_batch(make_batch(seed=1))
    assert first.tolist() == before.tolist()


def test_counting_sampled_steps_the_target_is_copied_when_they_pass_the_period() -> None:
    learner = make_learner(target_network_update_freq=100, target_counts_trained=False)
    copies = []
    for sampled in (50, 99, 100, 150, 199, 250, 349, 350):
        learner.observe_progress(sampled)
        learner.learn_on_batch(make_batch())
        copies.append((target_is_a_copy(learner), learner.num_target_updates))
    assert [copied for copied, _ in copies] == [False, False, True, False, False, True, False, True]
    assert [count for _, count in copies] == [0, 0, 1, 1, 1, 2, 2, 3]


def test_the_seed_decides_the_first_weights_and_leaves_torchs_own_stream_alone() -> None:
    torch.manual_seed(5)
    first = make_learner(seed=1).get_weights()
    torch.manual_seed(6)
    again, other = make_learner(seed=1).get_weights(), make_learner(seed=2).get_weights()
    assert as_bytes(first) == as_bytes(again)
    assert all((first[name] != other[name]).any() for name in first if name.endswith("weight"))


@pytest.mark.usefixtures("warnings_each_time")
def test_read_only_batches_and_states_raise_no_warning() -> None:
    learner = make_learner()
    learner.learn_on_batch(SampleBatch(read_only(make_batch().columns)))
    learner.load_state_dict(read_only(learner.state_dict()))


def test_batches_of_another_size_may_follow() -> None:
    learner = make_learner()
    for count in (32, 8, 32):
        assert td_errors_of(learner, make_batch(count=count)).shape == (count,)


NUM_UPDATES = 100


def new_learner(max_pending_updates: int = 0) -> DQNLearner:
    learner = make_learner(lr=1e-2, grad_norm_clipping=1.0, target_network_update_freq=7 * BATCH_SIZE)
    learner.max_pending_updates = max_pending_updates
    return learner


def bytes_of(learner: DQNLearner) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in learner.state_dict().items()}


def errors_of(results: list[LearnResult]) -> list[bytes]:
    return [np.asarray(result.td_errors).tobytes() for result in results]


def test_on_a_cpu_no_result_waits() -> None:
    learner = make_learner()
    assert isinstance(learner, PipelinedLearner)
    assert learner.max_pending_updates == 0


def test_updates_in_a_pipeline_equal_those_in_turn_exactly() -> None:
    in_turn, piped = new_learner(), new_learner()
    expected = [in_turn.learn_on_batch(make_batch(number)) for number in range(NUM_UPDATES)]
    pending, found = [], []
    for number in range(NUM_UPDATES):
        pending.append(piped.submit(make_batch(number)))
        if len(pending) > 2:
            found.append(pending.pop(0).result())
    found += [update.result() for update in pending]
    assert errors_of(found) == errors_of(expected)
    assert [result.stats for result in found] == [result.stats for result in expected]
    assert bytes_of(piped) == bytes_of(in_turn)
    assert piped.num_target_updates > 0


def test_a_thread_with_late_results_equals_one_without() -> None:
    expected, found = (learned_in_a_thread(new_learner(pending)) for pending in (0, 2))
    assert found == expected


def learned_in_a_thread(learner: DQNLearner) -> tuple[list[bytes], dict[str, bytes]]:
    thread: LearnerThread[int] = LearnerThread(learner, NUM_UPDATES)
    for number in range(NUM_UPDATES):
        thread.put(number, make_batch(number))
    thread.start()
    errors: list[Array] = []
    deadline = time.monotonic() + 60.0
    while len(errors) < NUM_UPDATES and time.monotonic() < deadline:
        thread.wait_for_output(60.0)
        outputs = thread.outputs()  # none if the last look took what this wait was for
        assert [output.origin for output in outputs] == list(range(len(errors), len(errors) + len(outputs)))
        errors += [np.asarray(output.result.td_errors) for output in outputs]
    thread.stop()
    return [each.tobytes() for each in errors], bytes_of(learner)


def test_divergence_is_found_when_the_result_is_read_and_names_its_update() -> None:
    learner = new_learner(2)
    bad = make_batch().with_columns(rewards=np.full(BATCH_SIZE, np.nan, np.float32))
    diverged, after = learner.submit(bad), learner.submit(make_batch())
    with pytest.raises(TrialError, match="at update 1"):
        diverged.result()
    with pytest.raises(TrialError, match="at update 2"):
        after.result()
