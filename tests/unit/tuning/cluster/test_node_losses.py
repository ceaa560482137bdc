"""Which failures of a trial on a cluster count, and which are those of its node."""

from __future__ import annotations

import pytest

from rlexp.tuning.trial_watch import NodeLosses
from tests.unit.tuning.cluster_doubles import FakeNodes

NAME = "00000-small"


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes()


@pytest.fixture
def losses(nodes: FakeNodes) -> NodeLosses:
    losses = NodeLosses(nodes, wait=lambda seconds: None)
    losses.begin(NAME, "a")
    return losses


def test_node_that_lives_is_not_lost(losses: NodeLosses) -> None:
    assert losses.lost_node(NAME) is None
    node = losses.node_of(NAME)
    assert node is not None
    assert node.address == "10.0.0.1"


@pytest.mark.parametrize("how", ["silent", "drained", "dead"])
def test_dead_silent_and_drained_nodes_are_lost(how: str, losses: NodeLosses, nodes: FakeNodes) -> None:
    if how == "dead":
        nodes.declare_dead("a")
    else:
        (nodes.silent if how == "silent" else nodes.drained).add("a")
    assert losses.lost_node(NAME) is not None


def test_node_whose_manager_dies_a_moment_after_the_process_is_lost(nodes: FakeNodes) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        nodes.silent.add("a")

    losses = NodeLosses(nodes, wait)
    losses.begin(NAME, "a")
    assert losses.lost_node(NAME) is not None
    assert len(waits) == 1


def test_trial_whose_node_is_not_known_has_lost_none(nodes: FakeNodes) -> None:
    losses = NodeLosses(nodes, wait=lambda seconds: None)
    losses.begin(NAME, "strange")
    assert losses.lost_node(NAME) is None
    assert losses.count(NAME) == 1


def test_failure_counts_no_longer_when_its_node_is_declared_dead(losses: NodeLosses, nodes: FakeNodes) -> None:
    assert losses.count(NAME) == 1
    losses.begin(NAME, "b")
    nodes.declare_dead("a")
    assert losses.count(NAME) == 1
    assert losses.count(NAME) == 2


def test_process_that_dies_before_it_begins_is_lost_with_a_node_that_was_lost_since(
    losses: NodeLosses, nodes: FakeNodes
) -> None:
    nodes.silent.add("a")
    assert losses.lost_node(NAME) is not None
    nodes.silent.add("b")
    lost = losses.lost_node(NAME)
    assert lost is not None
    assert lost.address == "10.0.0.2"


def test_one_lost_node_excuses_one_process(losses: NodeLosses, nodes: FakeNodes) -> None:
    nodes.silent.add("a")
    assert losses.lost_node(NAME) is not None
    assert losses.lost_node(NAME) is None
