"""What every Learner promises, for those of the algorithms and for the double of tests.

What every LearnerRunner promises, in the optimizer's thread and in one of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from rlexp.optimizers.learner_thread import IDLE_WAIT_S, LearnerOutput, LearnerRunner, LearnerThread
from rlexp.optimizers.policy_optimizer import InlineLearnerRunner
from rlexp.policy import Learner, LearnResult
from rlexp.sample_batch import Array, SampleBatch
from tests.lab import a2c, critics, evolution, ppo, pqn
from tests.lab.doubles import TIMEOUT_S, ScriptedLearner, keyed_rows, rows
from tests.lab.dqn import make_batch, make_learner


class Subject(NamedTuple):
    """A kind of learner, and numbered batches for it."""

    make: Callable[[], Learner]
    batch: Callable[[int], SampleBatch]
    updates: int = 1
    """In each of them."""


SUBJECTS = {
    "DQN": Subject(lambda: make_learner(target_network_update_freq=64), make_batch),
    "PPO, choices": Subject(ppo.make_learner, ppo.make_batch, updates=4),
    "PPO, numbers": Subject(
        lambda: ppo.make_learner(ppo.NUMBERS, num_sgd_iter=3, sgd_minibatch_size=128),
        lambda number: ppo.make_batch(number, space=ppo.NUMBERS),
        updates=3,
    ),
    "PQN": Subject(pqn.make_learner, pqn.make_batch, updates=4),
    "A2C": Subject(a2c.make_learner, ppo.make_batch),
    "PG": Subject(lambda: a2c.make_learner(vf_loss_coeff=0.0, sums_losses=False), ppo.make_batch),
    "DDPG": Subject(critics.make_learner, critics.make_batch),
    "TD3": Subject(lambda: critics.make_learner("TD3"), critics.make_batch),
    "SAC": Subject(lambda: critics.make_learner("SAC"), critics.make_batch),
    "SAC, choices": Subject(
        lambda: critics.make_learner("SAC", critics.DISCRETE_ENV), lambda number: critics.make_batch(number, True)
    ),
    "ES": Subject(lambda: evolution.make_agent("ES").make_learner(), evolution.make_batch),
    "ARS": Subject(lambda: evolution.make_agent("ARS").make_learner(), evolution.make_batch),
    "scripted": Subject(ScriptedLearner, lambda number: rows(float(number), count=4)),
}


@pytest.fixture(params=SUBJECTS.values(), ids=tuple(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.param
    return found


def learned(subject: Subject, learner: Learner, numbers: range) -> list[LearnResult]:
    return [learner.learn_on_batch(subject.batch(number)) for number in numbers]


def as_bytes(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def test_batches_of_one_length_are_equally_many_updates(subject: Subject) -> None:
    learner = subject.make()
    versions = []
    for number in range(3):
        versions.append(learner.num_updates)
        learned(subject, learner, range(number, number + 1))
    assert versions == [0, subject.updates, 2 * subject.updates]
    assert learner.num_updates == 3 * subject.updates


def test_results_have_figures_of_the_same_names_and_a_priority_for_each_row(subject: Subject) -> None:
    results = learned(subject, subject.make(), range(4))
    assert {frozenset(result.stats) for result in results} == {frozenset(results[0].stats)}
    assert all(isinstance(figure, float) for result in results for figure in result.stats.values())
    for number, result in enumerate(results):
        if result.td_errors is not None:
            assert result.td_errors.shape == (len(subject.batch(number)),)
            assert (result.td_errors >= 0).all()


def test_stats_keep_their_names(subject: Subject) -> None:
    learner = subject.make()
    names = set(learner.stats())
    learned(subject, learner, range(4))
    assert set(learner.stats()) == names


def test_weights_and_state_are_copies(subject: Subject) -> None:
    learner = subject.make()
    learned(subject, learner, range(2))
    weights, state = learner.get_weights(), learner.state_dict()
    before = as_bytes(weights), as_bytes(state)
    learned(subject, learner, range(2, 4))
    assert (as_bytes(weights), as_bytes(state)) == before
    assert as_bytes(learner.get_weights()) != before[0]


def test_a_learner_continues_from_the_state_of_another(subject: Subject) -> None:
    learner, other = subject.make(), subject.make()
    learner.observe_progress(1000)
    learned(subject, learner, range(5))
    other.load_state_dict(learner.state_dict())
    assert other.num_updates == learner.num_updates == 5 * subject.updates
    expected, found = (learned(subject, each, range(5, 10)) for each in (learner, other))
    assert [result.stats for result in found] == [result.stats for result in expected]
    assert as_bytes(other.state_dict()) == as_bytes(learner.state_dict())
    assert as_bytes(other.get_weights()) == as_bytes(learner.get_weights())


ORIGIN = "replay-0"
MakeRunner = Callable[[Learner], LearnerRunner[str]]


@pytest.fixture
def learner() -> ScriptedLearner:
    return ScriptedLearner()


@pytest.fixture(params=[InlineLearnerRunner, partial(LearnerThread, queue_capacity=4)], ids=["inline", "thread"])
def runner(request: pytest.FixtureRequest, learner: ScriptedLearner) -> Iterator[LearnerRunner[str]]:
    make: MakeRunner = request.param
    runner = make(learner)
    yield runner
    runner.stop()


def put(runner: LearnerRunner[str], value: float) -> None:
    runner.put(ORIGIN, keyed_rows(value, count=3))


def output_of(runner: LearnerRunner[str]) -> LearnerOutput[str]:
    """Return the next output of a runner that was started and has one batch."""
    deadline = time.monotonic() + TIMEOUT_S
    outputs: list[LearnerOutput[str]] = []
    while not outputs:
        assert time.monotonic() < deadline
        runner.wait_for_output(0.1)
        outputs = runner.outputs()
    (output,) = outputs
    return output


def learn(runner: LearnerRunner[str], *values: float) -> list[LearnerOutput[str]]:
    """Let a runner that was started learn on batches of ``values``, one after the other."""
    outputs = []
    for value in values:
        put(runner, value)
        outputs.append(output_of(runner))
    return outputs


def test_outputs_have_the_origin_and_td_errors_of_each_batch(runner: LearnerRunner[str]) -> None:
    runner.start()
    outputs = learn(runner, 1.0, 2.0)
    assert [output.origin for output in outputs] == [ORIGIN] * 2
    assert [output.num_rows for output in outputs] == [3] * 2
    assert [np.asarray(output.result.td_errors).tolist() for output in outputs] == [[1.0] * 3, [2.0] * 3]
    assert runner.outputs() == []
    assert (runner.num_updates, runner.last_stats) == (2, {"loss": 2.0})


def test_the_queue_counts_what_waits(runner: LearnerRunner[str]) -> None:
    assert runner.queue_size == 0
    for count in range(1, runner.queue_capacity + 1):
        put(runner, 1.0)
        assert runner.queue_size == count


def test_weights_are_those_after_the_update_that_follows_a_request(runner: LearnerRunner[str]) -> None:
    runner.start()
    learn(runner, 1.0)
    assert runner.latest_weights().version == 0
    runner.request_weights()
    learn(runner, 2.0)
    deadline = time.monotonic() + TIMEOUT_S
    while runner.latest_weights().version == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    snapshot = runner.latest_weights()
    assert (snapshot.version, snapshot.weights["updates"].tolist()) == (2, [2])


def test_stats_are_those_of_learner_and_queue(runner: LearnerRunner[str], learner: ScriptedLearner) -> None:
    runner.start()
    learn(runner, 1.0)
    assert runner.stats() == {
        "num_updates": 1,
        **learner.stats(),
        "learner_queue_size": 0,
        "learner_queue_capacity": runner.queue_capacity,
        "learner": {"loss": 1.0},
    }


def test_progress_reaches_the_learner(runner: LearnerRunner[str], learner: ScriptedLearner) -> None:
    runner.observe_progress(7)
    assert learner.progress == [7]


def test_paused_yields_the_learner_and_holds_it(runner: LearnerRunner[str], learner: ScriptedLearner) -> None:
    runner.start()
    with runner.paused() as held:
        assert held is learner
        put(runner, 1.0)
        assert not learner.learned.acquire(timeout=3 * IDLE_WAIT_S)
        assert runner.queue_size == 1
    assert np.asarray(output_of(runner).result.td_errors).tolist() == [1.0] * 3
    assert learner.num_updates == 1


def test_a_wait_ends_after_its_time(runner: LearnerRunner[str]) -> None:
    runner.start()
    started = time.monotonic()
    runner.wait_for_output(0.1)
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("started", [False, True])
def test_stops_twice_and_before_its_start(runner: LearnerRunner[str], learner: ScriptedLearner, started: bool) -> None:
    if started:
        runner.start()
    runner.stop()
    runner.stop()
    with runner.paused() as held:
        assert held is learner
