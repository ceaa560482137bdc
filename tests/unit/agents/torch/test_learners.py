"""Several learners of PPO, each in a plain process: equal to each other and to one, and ended together by a failure."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gymnasium.spaces import Space

from rlexp.agents.ppo.agent import PPOLearner
from rlexp.agents.torch import learner_process, learners
from rlexp.agents.torch.learner_process import ALONE, LearnerProcess, LearnerSpec, PeerUnreachedError, Shard
from rlexp.agents.torch.learners import LearnerGroup
from rlexp.cluster.pool.nodes import OwnNode
from rlexp.cluster.pool.pool import Actor, InlineTaskPool, Resources
from rlexp.errors import TrialError
from rlexp.models.action_distributions import actions_of
from rlexp.policy import Learner
from rlexp.rollout.folds import ADVANTAGES
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.agents import LearnersInThreads
from tests.lab.ppo import CHOICES, LEARNER, NUMBERS, make_batch, network_config
from tests.lab.process_pool import ProcessTaskPool

NOTHING_RESERVED = Resources(cpus=0, gpus=0)
SOON_S = 10.0
"""How long it takes at most, on a busy machine, until a failure is noticed and all learners are ended."""


def learner_spec(space: Space[Any] = CHOICES, num_learners: int = 2, **changes: Any) -> LearnerSpec:
    """Return what learners are built from; ``changes`` are those of the PPOLearnerConfig."""
    config = replace(LEARNER, **{"grad_norm_clipping": 0.5, **changes})
    make = partial(PPOLearner, network_config(space), actions_of(space), config, 7)
    return LearnerSpec(make, config.most_updates, num_learners, num_threads=1, num_gpus=0)


def ppo_learner(spec: LearnerSpec, shard: Shard = ALONE) -> Learner:
    """Return a learner in this process."""
    return spec.make("cpu", shard)


class Group:
    """A LearnerGroup, its pool and the actors of its learners."""

    def __init__(self, spec: LearnerSpec, report: Callable[[str], object] = str) -> None:
        self.spec = spec
        self.pool = ProcessTaskPool()
        self.learner = LearnerGroup(self.pool, NOTHING_RESERVED, spec, report)
        self.pids = [int(actor.handle) for actor in self.pool.actors()]

    def states(self) -> list[dict[str, bytes]]:
        """Return the state of each learner."""
        refs = [self.pool.call(actor, LearnerProcess.state_dict) for actor in self.pool.actors()]
        return [as_bytes(self.pool.get(ref, SOON_S)) for ref in refs]

    def signal_while_learning(self, rank: int, number: signal.Signals) -> threading.Timer:
        """Send a signal to a learner in a moment, when it learns."""
        timer = threading.Timer(0.5, os.kill, (self.pids[rank], number))
        timer.start()
        return timer


@contextmanager
def running(spec: LearnerSpec, report: Callable[[str], object] = str) -> Iterator[Group]:
    """Provide a group, and end its processes."""
    group = Group(spec, report)
    try:
        yield group
    finally:
        group.pool.stop()


def as_bytes(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


ENDLESS = 10**6
"""Epochs over a train batch that no test waits for."""
BATCH = make_batch(count=64)


def assert_ended(group: Group, failure: TrialError, started_s: float) -> None:
    """Check that all learners have ended soon after, and that every later call says why."""
    assert time.monotonic() - started_s < SOON_S
    assert not any(psutil.pid_exists(pid) for pid in group.pids)
    for later in (group.learner.get_weights, group.learner.state_dict):
        with pytest.raises(TrialError) as again:
            later()
        assert again.value is failure


@pytest.mark.parametrize("rank", [0, 1])
def test_a_learner_killed_while_it_learns_is_replaced_and_nothing_else_changes(rank: int) -> None:
    """Where learning is over before the kill, the learner is missed by the next call; the end is the same."""
    reports: list[str] = []
    spec = learner_spec(num_sgd_iter=100)
    with running(spec) as undisturbed, running(spec, reports.append) as group:
        expected = undisturbed.learner.learn_on_batch(BATCH).stats
        timer = group.signal_while_learning(rank, signal.SIGKILL)
        found = group.learner.learn_on_batch(BATCH).stats
        timer.join()
        group.learner.load_state_dict(group.learner.state_dict())
        assert reports == [f"learner {rank} died; another one has replaced it, with the state of the others"]
        assert found == expected
        first, second = group.states()
        assert first == second == undisturbed.states()[0]
        assert group.learner.num_updates == undisturbed.learner.num_updates


def test_a_learner_killed_between_two_train_batches_is_replaced_too() -> None:
    with running(learner_spec()) as group:
        group.learner.learn_on_batch(BATCH)
        before, num_updates = group.states()[0], group.learner.num_updates
        os.kill(group.pids[0], signal.SIGKILL)
        assert as_bytes(group.learner.state_dict()) == before
        assert (group.states(), group.learner.num_updates) == ([before] * 2, num_updates)


def test_learners_of_which_all_die_end_the_trial_with_the_cause() -> None:
    with running(learner_spec(num_sgd_iter=ENDLESS)) as group:
        started_s = time.monotonic()
        timers = [group.signal_while_learning(rank, signal.SIGKILL) for rank in (0, 1)]
        with pytest.raises(TrialError) as failure:
            group.learner.learn_on_batch(BATCH)
        for timer in timers:
            timer.join()
        assert re.fullmatch(r"learner \d failed: its process died", failure.value.message)
        assert "max_failures" in str(failure.value.hint)
        assert_ended(group, failure.value, started_s)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_learner_that_hangs_is_replaced_and_nothing_else_changes(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "GRACE_S", 1.0)
    reports: list[str] = []
    spec = replace(learner_spec(), peer_timeout_s=5.0)
    with running(spec) as undisturbed, running(spec, reports.append) as group:
        expected = undisturbed.learner.learn_on_batch(BATCH).stats
        os.kill(group.pids[rank], signal.SIGSTOP)
        found = group.learner.learn_on_batch(BATCH).stats
        assert reports == [f"learner {rank} hung; another one has replaced it, with the state of the others"]
        assert not psutil.pid_exists(group.pids[rank])
        assert found == expected
        assert group.states() == undisturbed.states()


def test_learners_that_all_hang_end_the_trial_and_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "ANSWER_TIMEOUT_S", 1.0)
    with running(learner_spec()) as group:
        started_s = time.monotonic()
        for pid in group.pids:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TrialError) as failure:
            group.learner.load_state_dict({})
        assert failure.value.message == "learner 0 hangs: it did not answer in time"
        assert_ended(group, failure.value, started_s)


def test_a_loss_that_is_not_finite_is_reported_as_that_of_one_learner() -> None:
    with running(learner_spec()) as group:
        batch = BATCH.with_columns(**{ADVANTAGES: np.full(64, np.nan, np.float32)})
        with pytest.raises(TrialError) as expected:
            ppo_learner(group.spec).learn_on_batch(batch)
        started_s = time.monotonic()
        with pytest.raises(TrialError) as failure:
            group.learner.learn_on_batch(batch)
        assert (failure.value.message, failure.value.hint) == (expected.value.message, expected.value.hint)
        assert_ended(group, failure.value, started_s)


def test_the_error_of_one_learner_ends_those_that_wait_for_it() -> None:
    with running(learner_spec()) as group:
        actions = BATCH[ACTIONS].copy()
        actions[5] = 99  # only the learner that has this row looks up its probability
        started_s = time.monotonic()
        with pytest.raises((RuntimeError, IndexError), match="99") as failure:
            group.learner.learn_on_batch(BATCH.with_columns(**{ACTIONS: actions}))
        assert "raised in learner" in failure.value.__notes__[0]
        assert time.monotonic() - started_s < SOON_S
        assert not any(psutil.pid_exists(pid) for pid in group.pids)


def test_a_state_of_another_form_raises_what_one_learner_raises() -> None:
    with running(learner_spec()) as group:
        state = group.learner.state_dict()
        broken = {name: array for name, array in state.items() if name != "kl_coeff"}
        with pytest.raises(KeyError, match="kl_coeff") as failure:
            group.learner.load_state_dict(broken)
        assert any("raised in learner" in note for note in failure.value.__notes__)
        assert not any(psutil.pid_exists(pid) for pid in group.pids)


def test_learners_that_cannot_connect_name_the_addresses() -> None:
    hanging, failing = (Actor[LearnerProcess](f"learner-{rank}", None, is_here=False) for rank in (0, 1))
    error = PeerUnreachedError("it cannot connect to the others: refused; its own address is 10.0.0.3 (eth0)")
    failure = learners._first_cause({failing: error}, [hanging])
    assert isinstance(failure, TrialError)
    assert failure.message == f"learner 1 failed: {error.message}"
    assert "GLOO_SOCKET_IFNAME" in str(failure.hint)


def test_address_of_the_learners_is_that_of_rays_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = {"lo": ["127.0.0.1", "127.0.1.1"], "eth0": ["10.0.0.3"], "eth1": ["10.1.0.3"]}
    found = {name: [SimpleNamespace(address=each) for each in addresses] for name, addresses in interfaces.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(learner_process, "_outer_address", lambda: "10.0.0.3")
    monkeypatch.setattr(learner_process, "own_node", lambda: OwnNode("a", "10.1.0.3"))
    assert learner_process._address(are_together=False) == "10.1.0.3"
    assert learner_process.interface_of("10.1.0.3") == "eth1"
    monkeypatch.setattr(learner_process, "own_node", lambda: OwnNode("a", "203.0.113.7"))
    assert learner_process._address(are_together=False) == "10.0.0.3", "its address is translated by a router"
    assert learner_process._address(are_together=True) == "127.0.0.1"


def test_interface_of_the_user_wins_between_nodes() -> None:
    environment = {"GLOO_SOCKET_IFNAME": "ib0"}
    learner_process.use_interface("eth0", environment, is_only_choice=False)
    assert environment == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "eth0"}
    learner_process.use_interface("lo", environment, is_only_choice=True)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_learner_that_cannot_be_made_fails_the_group_at_once() -> None:
    pool = ProcessTaskPool()
    spec = replace(learner_spec(), num_gpus=1)
    with pytest.raises(Exception, match="sees no GPU"):
        LearnerGroup(pool, NOTHING_RESERVED, spec)
    pool.stop()


def test_a_learner_that_dies_before_it_connects_fails_the_group() -> None:
    pool = ProcessTaskPool()
    spec = learner_spec()
    with pytest.raises(TrialError, match=r"learner 1 failed: its process died"):
        LearnerGroup(pool, NOTHING_RESERVED, replace(spec, make=partial(made_or_dead, spec.make)))
    pool.stop()


def made_or_dead(make: Callable[[str, Shard], Learner], device: str, shard: Shard) -> Learner:
    """Return a learner; the second one's process dies."""
    if shard.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(device, shard)


def test_learners_in_one_process_are_refused_instead_of_waiting_for_each_other() -> None:
    started_s = time.monotonic()
    with pytest.raises(ValueError, match="processes of their own"):
        LearnerGroup(InlineTaskPool(), NOTHING_RESERVED, learner_spec())
    assert time.monotonic() - started_s < SOON_S


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


def assert_close(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("num_learners", [1, 2, 3, 7])
@pytest.mark.parametrize("starts", [[0], [0, 5, 10, 15], [0, 1, 2, 19], [*range(20)]])
def test_parts_of_rows_begin_at_starts_and_have_each_row_once(num_learners: int, starts: list[int]) -> None:
    batch = SampleBatch({OBS: np.arange(20)})
    shards = [Shard(rank, num_learners, lambda tensor: None) for rank in range(num_learners)]
    parts = [shard.part_of_rows(batch, lambda _: np.array(starts)) for shard in shards]
    learned = [part[OBS].tolist() for part, is_spare in parts if not is_spare]
    assert [row for rows in learned for row in rows] == [*range(20)]
    assert {rows[0] for rows in learned} <= set(starts)
    assert all(part[OBS].tolist() == [*range(starts[1] if len(starts) > 1 else 20)] for part, spare in parts if spare)
    if len(starts) == 20:
        assert max(map(len, learned)) - min(map(len, learned)) <= 1


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
    reference = LearnersInThreads(group.spec.make)
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
