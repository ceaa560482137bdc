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


@pytest.mark.parametrize("double_q", [True, False])
def test_an_update_lowers_the_loss_on_its_batch(double_q: bool) -> None:
    learner, batch = make_learner(double_q=double_q), make_batch()
    losses = [learner.learn_on_batch(batch).stats["loss"] for _ in range(10)]
    assert losses[1] < losses[0]
    assert losses[-1] < 0.95 * losses[0]


def test_it_fits_what_does_not_bootstrap() -> None:
    learner, batch = make_learner(lr=1e-2), make_batch()
    ends = batch.with_columns(discounts=np.zeros(BATCH_SIZE, np.float32))
    for _ in range(400):
        errors = td_errors_of(learner, ends)
    assert errors.mean() < 0.1


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


def test_rows_of_weight_zero_are_not_learned_from() -> None:
    batch = make_batch().with_columns(weights=np.zeros(BATCH_SIZE, np.float32))
    learner = make_learner()
    before = as_bytes(learner.get_weights())
    assert learner.learn_on_batch(batch).stats["loss"] == 0.0
    assert as_bytes(learner.get_weights()) == before


def test_the_target_network_starts_as_a_copy_and_then_stays() -> None:
    learner = make_learner()
    assert target_is_a_copy(learner)
    learner.learn_on_batch(make_batch())
    assert not target_is_a_copy(learner)
    assert learner.num_target_updates == 0


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_what_a_cpu_learns() -> None:
    on_cpu, on_gpu = make_learner(), make_learner(device="cuda")
    on_gpu.load_state_dict(on_cpu.state_dict())
    for seed in range(20):
        expected, found = (learner.learn_on_batch(make_batch(seed)) for learner in (on_cpu, on_gpu))
        assert found.td_errors == pytest.approx(expected.td_errors, abs=1e-3)
    weights = on_gpu.get_weights()
    for name, array in on_cpu.get_weights().items():
        assert weights[name] == pytest.approx(array, abs=1e-2)


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
