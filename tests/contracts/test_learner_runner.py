"""What every LearnerRunner promises, in the optimizer's thread and in one of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from rlexp.optimizers.learner_thread import IDLE_WAIT_S, LearnerOutput, LearnerRunner, LearnerThread
from rlexp.optimizers.policy_optimizer import InlineLearnerRunner
from rlexp.policy import Learner
from tests.doubles.scripted import TIMEOUT_S, ScriptedLearner, keyed_rows

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
    assert [np.asarray(output.td_errors).tolist() for output in outputs] == [[1.0] * 3, [2.0] * 3]
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
    assert np.asarray(output_of(runner).td_errors).tolist() == [1.0] * 3
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
