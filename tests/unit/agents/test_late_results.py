"""A DQN learner whose results are read late computes exactly what it computes in turn."""

from __future__ import annotations

import numpy as np
import pytest

from rlexp.agents.dqn.learner import DQNLearner
from rlexp.errors import TrialError
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.policy import LearnResult, PipelinedLearner
from rlexp.sample_batch import Array
from tests.unit.agents.batches import BATCH_SIZE, make_batch, make_learner

NUM_UPDATES = 100


def new_learner(max_pending_updates: int = 0) -> DQNLearner:
    learner = make_learner(lr=1e-2, grad_norm_clipping=1.0, target_network_update_freq=7 * BATCH_SIZE)
    learner.max_pending_updates = max_pending_updates
    return learner


def as_bytes(learner: DQNLearner) -> dict[str, bytes]:
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
    assert as_bytes(piped) == as_bytes(in_turn)
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
    while len(errors) < NUM_UPDATES:
        thread.wait_for_output(60.0)
        outputs = thread.outputs()
        assert outputs
        assert [output.origin for output in outputs] == list(range(len(errors), len(errors) + len(outputs)))
        errors += [np.asarray(output.td_errors) for output in outputs]
    thread.stop()
    return [each.tobytes() for each in errors], as_bytes(learner)


def test_divergence_is_found_when_the_result_is_read_and_names_its_update() -> None:
    learner = new_learner(2)
    bad = make_batch().with_columns(rewards=np.full(BATCH_SIZE, np.nan, np.float32))
    diverged, after = learner.submit(bad), learner.submit(make_batch())
    with pytest.raises(TrialError, match="at update 1"):
        diverged.result()
    with pytest.raises(TrialError, match="at update 2"):
        after.result()
