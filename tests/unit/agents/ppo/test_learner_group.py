"""Several learners of PPO, each in a process: equal to each other and to one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.spaces import Space
from torch import Tensor

from rlexp.agents.ppo.learner import Shard
from rlexp.agents.torch.learners import LearnerSpec
from rlexp.policy import LearnResult
from rlexp.sample_batch import Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.unit.agents.ppo.batches import CHOICES, NUMBERS, make_batch
from tests.unit.agents.ppo.learner_groups import SOON_S, Group, as_bytes, learner_spec, ppo_learner, running

FALLING_LR = PiecewiseSchedule(((0, 3e-3), (1000, 1e-3)))


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Group]:
    """Two learners, which several tests use one after the other."""
    with running(learner_spec(lr=FALLING_LR)) as group:
        yield group


@pytest.fixture
def group(shared_group: Group) -> Group:
    shared_group.learner.load_state_dict(ppo_learner(shared_group.spec).state_dict())
    return shared_group


class TwoInOneProcess:
    """Two learners in threads of this process, which add up the gradients of their halves in the order of ranks."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._addends: list[Tensor | None] = [None, None]
        self._barrier = threading.Barrier(2, timeout=SOON_S)
        self.learners = [ppo_learner(spec, Shard(rank, 2, self._add_up_of(rank))) for rank in range(2)]

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        with ThreadPoolExecutor(2) as threads:
            first, _ = [threads.submit(learner.learn_on_batch, batch) for learner in self.learners]
        return first.result()

    def _add_up_of(self, rank: int) -> Callable[[Tensor], None]:
        def add_up(tensor: Tensor) -> None:
            self._addends[rank] = tensor.clone()
            self._barrier.wait()
            first, second = self._addends
            assert first is not None
            assert second is not None
            tensor.copy_(first + second)
            self._barrier.wait()

        return add_up


def assert_close(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


LENGTHS = (64, 61, 50, 7)
"""Some divide into equal minibatches and these into equal halves, others do not; the last is one minibatch."""
BATCHES = [make_batch(number, length) for number, length in enumerate(LENGTHS)]


def test_ranks_are_equal_bit_by_bit_after_several_train_batches(group: Group) -> None:
    before = group.states()
    for batch in BATCHES:
        group.learner.learn_on_batch(batch)
        first, second = group.states()
        assert first == second
    assert group.states() != before


def test_learners_equal_one_process_that_adds_up_the_gradients_of_the_halves(group: Group) -> None:
    reference = TwoInOneProcess(group.spec)
    for batch in BATCHES:
        assert group.learner.learn_on_batch(batch).stats == reference.learn_on_batch(batch).stats
        assert group.states()[0] == as_bytes(reference.learners[0].state_dict())


@pytest.mark.parametrize("space", [CHOICES, NUMBERS], ids=["choices", "numbers"])
def test_learners_come_to_the_weights_and_figures_of_one(space: Space[Any]) -> None:
    with running(learner_spec(space, sgd_minibatch_size=15, lr=FALLING_LR)) as group:
        plain = ppo_learner(group.spec)
        for number, length in enumerate(LENGTHS):
            batch = make_batch(number, length, space)
            for learner in (group.learner, plain):
                learner.observe_progress(200 * number)
            found, expected = (learner.learn_on_batch(batch).stats for learner in (group.learner, plain))
            assert found.keys() == expected.keys()
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert group.learner.num_updates == plain.num_updates
            assert_close(group.learner.get_weights(), plain.get_weights())
            assert_close(group.learner.state_dict(), plain.state_dict())


def test_three_learners_equal_each_other_and_come_to_the_weights_of_one() -> None:
    with running(learner_spec(num_learners=3)) as group:
        plain = ppo_learner(group.spec)
        for batch in BATCHES:
            group.learner.learn_on_batch(batch)
            plain.learn_on_batch(batch)
        first, *others = group.states()
        assert [first, first] == others
        assert_close(group.learner.get_weights(), plain.get_weights())


def test_a_learner_without_a_row_of_a_minibatch_takes_part(group: Group) -> None:
    plain = ppo_learner(group.spec)
    batch = make_batch(0, count=1)
    found, expected = (learner.learn_on_batch(batch).stats for learner in (group.learner, plain))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert_close(group.learner.get_weights(), plain.get_weights())


def test_one_learner_and_several_continue_from_the_states_of_each_other(group: Group) -> None:
    group.learner.observe_progress(500)
    group.learner.learn_on_batch(BATCHES[0])
    state = group.learner.state_dict()
    plain = ppo_learner(group.spec)
    plain.load_state_dict(state)
    assert as_bytes(plain.state_dict()) == as_bytes(state)
    expected = group.learner.learn_on_batch(BATCHES[1]).stats, as_bytes(group.learner.state_dict())
    group.learner.load_state_dict(plain.state_dict())
    assert group.learner.num_updates == plain.num_updates
    assert (group.learner.learn_on_batch(BATCHES[1]).stats, as_bytes(group.learner.state_dict())) == expected
    assert group.states()[0] == group.states()[1]


def test_learners_read_the_clock_of_schedules(group: Group) -> None:
    for num_steps, lr in ((0, 3e-3), (500, 2e-3), (5000, 1e-3)):
        group.learner.observe_progress(num_steps)
        assert group.learner.learn_on_batch(BATCHES[0]).stats["lr"] == pytest.approx(lr)


def connections_of(process: psutil.Process) -> list[Any]:
    """Return the TCP connections of a process; psutil before 6 has another name for them."""
    return list((process.net_connections if hasattr(process, "net_connections") else process.connections)("tcp"))


def test_learners_on_one_host_can_be_reached_from_there_only(group: Group) -> None:
    listening = [
        connection.laddr.ip
        for pid in group.pids
        for connection in connections_of(psutil.Process(pid))
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2
    assert set(listening) == {"127.0.0.1"}
