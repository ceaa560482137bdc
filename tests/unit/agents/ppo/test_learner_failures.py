"""A learner that dies, hangs or fails ends all of its group with the cause."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from rlexp.agents.torch import learners
from rlexp.agents.torch import learners as learner_process
from rlexp.agents.torch.learners import LearnerGroup, LearnerProcess, PeerUnreachedError
from rlexp.cluster.pool import Actor, InlineTaskPool, OwnNode
from rlexp.errors import TrialError
from rlexp.rollout.folds import ADVANTAGES
from rlexp.sample_batch import ACTIONS
from tests.doubles.process_pool import ProcessTaskPool
from tests.unit.agents.ppo.batches import make_batch
from tests.unit.agents.ppo.learner_groups import NOTHING_RESERVED, SOON_S, Group, learner_spec, ppo_learner, running

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
def test_a_learner_killed_while_it_learns_ends_all_with_the_cause(rank: int) -> None:
    with running(learner_spec(num_sgd_iter=ENDLESS)) as group:
        started_s = time.monotonic()
        timer = group.signal_while_learning(rank, signal.SIGKILL)
        with pytest.raises(TrialError) as failure:
            group.learner.learn_on_batch(BATCH)
        timer.join()
        assert failure.value.message == f"learner {rank} failed: its process died"
        assert "max_failures" in str(failure.value.hint)
        assert_ended(group, failure.value, started_s)


def test_a_learner_that_hangs_ends_all_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "GRACE_S", 1.0)
    with running(replace(learner_spec(num_sgd_iter=ENDLESS), peer_timeout_s=1.0)) as group:
        started_s = time.monotonic()
        timer = group.signal_while_learning(0, signal.SIGSTOP)
        with pytest.raises(TrialError) as failure:
            group.learner.learn_on_batch(BATCH)
        timer.join()
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


def test_a_learner_that_cannot_be_made_fails_the_group_at_once() -> None:
    pool = ProcessTaskPool()
    spec = replace(learner_spec(), num_gpus=1)
    with pytest.raises(Exception, match="sees no GPU"):
        LearnerGroup(pool, NOTHING_RESERVED, spec)
    pool.stop()


def test_learners_in_one_process_are_refused_instead_of_waiting_for_each_other() -> None:
    started_s = time.monotonic()
    with pytest.raises(ValueError, match="processes of their own"):
        LearnerGroup(InlineTaskPool(), NOTHING_RESERVED, learner_spec())
    assert time.monotonic() - started_s < SOON_S
