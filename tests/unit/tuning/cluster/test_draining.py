"""Trials on nodes that are taken away are asked to move, once each."""

from __future__ import annotations

from rlexp.tuning.cluster_trials import DrainWatch
from rlexp.tuning.trial_watch import NodeLosses
from tests.unit.tuning.cluster_doubles import FakeNodes


def test_trials_of_drained_nodes_are_asked_once() -> None:
    nodes, now_s = FakeNodes(), [100.0]
    losses = NodeLosses(nodes, wait=lambda seconds: None)
    watch = DrainWatch(nodes, losses, lambda: now_s[0])
    losses.begin("one", "a")
    losses.begin("two", "b")
    assert not watch.to_move(["one", "two"])
    nodes.drained.add("a")
    assert not watch.to_move(["one", "two"]), "it looked again too early"
    now_s[0] += 6
    assert [(name, node.address) for name, node in watch.to_move(["one", "two"]).items()] == [("one", "10.0.0.1")]
    assert watch.is_asked("one")
    now_s[0] += 6
    assert not watch.to_move(["one", "two"])
    watch.forget("one")
    losses.begin("one", "b")
    now_s[0] += 6
    assert not watch.to_move(["one", "two"])


def test_trial_that_starts_on_a_drained_node_again_is_asked_again() -> None:
    nodes, now_s = FakeNodes(drained={"a"}), [100.0]
    losses = NodeLosses(nodes, wait=lambda seconds: None)
    watch = DrainWatch(nodes, losses, lambda: now_s[0])
    losses.begin("one", "a")
    assert watch.to_move(["one"])
    watch.forget("one")
    now_s[0] += 6
    assert watch.to_move(["one"])
