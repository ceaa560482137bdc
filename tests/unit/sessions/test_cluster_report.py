"""Which differences between the nodes of a cluster keep experiments from running there, and how they are told apart."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.cluster.probe import FILE_HINT, REACH_HINT, report_of
from rlexp.errors import ResourceError

HERE = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "rlexp": "0.1.0"}
GIB = 2**30


def answer(number: int, *, cpus: float = 4, is_driver: bool = False, **facts: Any) -> dict[str, Any]:
    found = {**HERE, "memory_total": 8 * GIB, "memory_available": 4 * GIB, "sees_out": True, "failed_imports": {}}
    known = {"id": f"{number:06d}abcdef", "address": f"10.0.0.{number}", "cpus": cpus, "gpus": 0, "custom": {}}
    return {**known, "is_driver": is_driver, "facts": {**found, **facts}}


def test_equal_nodes_make_a_cluster_that_begins_with_this_machine() -> None:
    report = report_of("10.0.0.1:6379", [answer(1), answer(2, is_driver=True, sees_out=False)], HERE)
    report.refuse_problems()
    assert [node.name for node in report.cluster.nodes] == ["10.0.0.2", "10.0.0.1"]
    assert (report.cluster.cpus, report.cluster.shares_out, report.cluster.is_joined) == (8, True, True)


def test_node_without_the_directory_of_runs() -> None:
    report = report_of("", [answer(1, is_driver=True), answer(2, sees_out=False)], HERE)
    assert not report.cluster.shares_out


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"python": "3.12.1"}, "node 10.0.0.2 has python 3.12.1, this machine has 3.11.7"),
        ({"ray": "2.54.0"}, "node 10.0.0.2 has ray 2.54.0, this machine has 2.60.0"),
        ({"rlexp": None}, "node 10.0.0.2 has rlexp none, this machine has 0.1.0"),
        ({"failed_imports": {"my_env": "no"}}, "node 10.0.0.2 cannot import my_env: no"),
    ],
)
def test_difference_that_breaks_is_an_error(facts: dict[str, Any], message: str) -> None:
    report = report_of("", [answer(1, is_driver=True), answer(2, **facts), answer(3, **facts)], HERE)
    with pytest.raises(ResourceError) as caught:
        report.refuse_problems()
    assert [problem.message for problem in caught.value.problems] == [message, message.replace("0.0.2", "0.0.3")]
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("facts", "message", "hint"),
    [
        ({"failed_imports": {"redis": "no"}}, "node 10.0.0.2 cannot import redis: no", "pip install"),
        ({"unreachable": {"the board": "refused"}}, "node 10.0.0.2 cannot reach the board: refused", "give another"),
        ({"unreachable": {"the queue": "refused"}}, "node 10.0.0.2 cannot reach the queue: refused", REACH_HINT),
        ({"missing_files": ["/ca.pem"]}, "node 10.0.0.2 cannot read /ca.pem", FILE_HINT),
    ],
)
def test_what_a_board_needs_is_an_error_with_a_remedy(facts: dict[str, Any], message: str, hint: str) -> None:
    hints = {"redis": "pip install", "the board": "give another"}
    report = report_of(
        "", [answer(1, is_driver=True), answer(2, **facts), answer(3, cpus=0, **facts)], HERE, hints=hints
    )
    with pytest.raises(ResourceError) as caught:
        report.refuse_problems()
    assert [(problem.message, problem.hint) for problem in caught.value.problems] == [(message, hint)]


@pytest.mark.parametrize("facts", [{"python": "3.11.9"}, {"torch": "2.10.0"}, {"torch": None}])
def test_difference_that_does_not_break_is_a_notice(facts: dict[str, Any]) -> None:
    report = report_of("", [answer(1, is_driver=True), answer(2, **facts)], HERE)
    report.refuse_problems()
    assert len(report.nodes[1].notices) == 1


def test_head_that_offers_nothing_may_differ() -> None:
    report = report_of("", [answer(1, is_driver=True), answer(2, cpus=0, rlexp=None)], HERE)
    report.refuse_problems()
    assert report.nodes[1].notices == ("node 10.0.0.2 has rlexp none, this machine has 0.1.0",)


def test_node_that_does_not_answer_and_node_that_has_left() -> None:
    silent, gone = answer(2), answer(3)
    del silent["facts"], gone["facts"]
    silent["error"], gone["error"], gone["has_left"] = "no answer", "it has left the cluster", True
    report = report_of("", [answer(1, is_driver=True), silent, gone], HERE)
    assert [node.name for node in report.cluster.nodes] == ["10.0.0.1", "10.0.0.2"]
    assert report.notices == ("node 10.0.0.3 has left the cluster",)
    with pytest.raises(ResourceError, match=r"node 10\.0\.0\.2: no answer"):
        report.refuse_problems()


def test_hint_tells_a_busy_node_from_one_that_is_not_reached() -> None:
    hints = []
    for silence in ({"silence": "busy"}, {"silence": "unreached"}, {}):
        silent = answer(2) | {"error": "no answer"} | silence
        with pytest.raises(ResourceError) as caught:
            report_of("", [answer(1, is_driver=True), silent], HERE).refuse_problems()
        hints.append(str(caught.value.hint))
    assert ["is busy" in hint for hint in hints] == [True, False, False]
    assert ["network" in hint for hint in hints] == [False, True, False]
    assert "logs" in hints[2]


def test_nodes_of_one_address_have_names_of_their_own() -> None:
    first, second = answer(1), answer(2)
    second["address"] = first["address"]
    names = [node.name for node in report_of("", [first, second], HERE).cluster.nodes]
    assert names == ["10.0.0.1 (000001)", "10.0.0.1 (000002)"]
