"""

A DQN learner whose results are read late computes exactly what it computes in turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from rlexp.agents.dqn.learner import DQNLearner
from rlexp.errors import TrialError
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.policy import LearnResult, PipelinedLearner
from rlexp.sample_batch import Array, SampleBatch
from tests.lab.dqn import BATCH_SIZE, make_batch, make_learner, read_only


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
        errors += [np.asarray(output.td_errors) for output in outputs]
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
