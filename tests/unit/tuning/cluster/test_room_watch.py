"""What a trial that waits lacks, in words, and when that is shown."""

from __future__ import annotations

import pytest

from rlexp.cluster.nodes import Bundle
from rlexp.tuning.trial_watch import PATIENCE_S, RoomWatch, amounts, missing_elsewhere, missing_room
from tests.unit.tuning.cluster_doubles import FakeNodes

DRIVER, WORKER = {"CPU": 4.0}, {"CPU": 1.0}


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ([], "a node with 4 CPUs for the driver"),
        ([{"CPU": 3.0}, {"CPU": 3.0}], "a node with 4 CPUs for the driver"),
        ([{"CPU": 5.0}], "2 of its 3 other processes (1 CPU each)"),
        ([{"CPU": 4.0}, {"CPU": 2.0}], "1 of its 3 other processes (1 CPU each)"),
        ([{"CPU": 4.0}, {"CPU": 3.0}], None),
        ([{"CPU": 2.0, "node:a": 1.0}, {"CPU": 5.0}], None),
    ],
)
def test_missing_room(available: list[Bundle], expected: str | None) -> None:
    before = [dict(node) for node in available]
    assert missing_room([DRIVER, WORKER, WORKER, WORKER], available) == expected
    assert available == before


@pytest.mark.parametrize(
    ("free", "held_on", "expected"),
    [
        ({"a": {"CPU": 9.0}, "b": {"CPU": 4.0}}, "aaa", "2 of its 2 other processes (1 CPU each)"),
        ({"a": {"CPU": 9.0}, "b": {"CPU": 4.0}}, "aab", "1 of its 2 other processes (1 CPU each)"),
        ({"a": {}, "b": {"CPU": 4.0}}, "abb", None),
        ({"a": {}, "b": {"CPU": 3.0}, "c": {}}, "abc", "1 of its 2 other processes (1 CPU each)"),
        ({"a": {}, "b": {"CPU": 4.0}}, "abd", "1 of its 2 other processes (1 CPU each)"),
        ({"a": {}, "b": {"CPU": 4.0}}, "bbb", "2 of its 2 other processes (1 CPU each)"),
        ({"a": {}}, "aaa", "a node with 4 CPUs for the driver"),
    ],
)
def test_missing_elsewhere(free: dict[str, Bundle], held_on: str, expected: str | None) -> None:
    bundles = [DRIVER, WORKER, WORKER]
    others: list[tuple[str, Bundle]] = [("b", WORKER), ("a", WORKER)]
    nodes = FakeNodes(free=free, held=[others, list(zip(held_on, bundles, strict=True))])
    assert missing_elsewhere(bundles, False, "a", nodes) == expected


def test_missing_elsewhere_of_a_trial_that_needs_one_node() -> None:
    nodes = FakeNodes(free={"b": {"CPU": 5.0}, "c": {"CPU": 1.0}})
    assert missing_elsewhere([DRIVER, WORKER, WORKER], False, "a", nodes) is None
    assert missing_elsewhere([DRIVER, WORKER, WORKER], True, "a", nodes) == "a node with 6 CPUs"


def test_amounts_in_words() -> None:
    assert amounts({"CPU": 1.0, "GPU": 2.0}) == "1 CPU and 2 GPUs"
    assert amounts({"CPU": 0.5, "fast_disk": 2.0}) == "0.5 CPUs and 2 fast_disk"
    assert amounts({}) == "no resources"


def test_waiting_is_shown_after_a_while_and_when_it_changes() -> None:
    nodes, now_s = FakeNodes(free={"a": {"CPU": 2.0}}, groups=[[DRIVER, WORKER]]), [100.0]
    watch = RoomWatch(nodes, lambda: now_s[0])
    waiting = {"one": [DRIVER, WORKER]}
    assert not watch.news(waiting)
    now_s[0] += PATIENCE_S
    assert watch.news(waiting) == {"one": "waiting for room: a node with 4 CPUs for the driver"}
    now_s[0] += 10
    assert not watch.news(waiting)
    nodes.free = {"a": {"CPU": 4.0}}
    now_s[0] += 10
    assert watch.news(waiting) == {"one": "waiting for room: 1 of its 1 other process (1 CPU each)"}
    assert not watch.news({})
    now_s[0] += 10
    assert not watch.news(waiting), "it waits anew"


def test_placed_trial_does_not_wait_for_room() -> None:
    nodes, now_s = FakeNodes(groups=[[DRIVER]]), [100.0]
    watch = RoomWatch(nodes, lambda: now_s[0])
    waiting = {"one": [DRIVER, WORKER]}
    watch.news(waiting)
    now_s[0] += PATIENCE_S
    assert not watch.news(waiting)
