"""What a command says where the process that looks at a cluster cannot connect, dies, is refused or waits for nodes.

Which differences between the nodes of a cluster keep experiments from running there, and how they are told apart.

What a node finds out about itself, in this process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster import joined, probe, probe_process
from rlexp.cluster.environment import check_loopback
from rlexp.cluster.joined import LOST_AFTER_S, Reachability
from rlexp.cluster.probe import FILE_HINT, REACH_HINT, report_of
from rlexp.cluster.probe_process import measured
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


def test_packages_that_are_not_installed_and_files_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    files = [str(tmp_path / "there"), str(tmp_path / "gone")]
    facts = measured([], ["numpy", "no_such_package", "no_such_package.part"], [], None, {}, files)
    assert facts["failed_imports"] == dict.fromkeys(["no_such_package", "no_such_package.part"], "it is not installed")
    assert facts["missing_files"] == [files[1]]


def test_servers_that_cannot_be_reached_have_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        servers = {"the board": there.getsockname()[:2], "the queue": silent.getsockname()[:2]}
        assert measured([], [], [], None, servers, [])["unreachable"] == {"the queue": "Connection refused"}


CONNECTING = 'send("loaded")\n    '
DIES = 'raise SystemExit("libray.so is missing")'
IS_REFUSED = 'print("Unauthenticated: InvalidAuthToken", flush=True); time.sleep(600)'
HAS_OTHER_VERSION = (
    'send("failed", error="Version mismatch: The cluster was started with:\\n    Ray: 2.1.0\\n    Python: 3.9.1\\n'
    'This process was started with:\\n    Ray: 2.60.0\\n    Python: 3.11.7")'
)
IS_NO_NODE = 'send("failed", error="Failed to connect\\nNo node info found when trying to resolve node to connect to.")'


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (DIES, "cannot join the cluster at {0}: the process that asks it ended with exit code 1: libray.so is missing"),
        (CONNECTING + DIES, "the process that asks it ended with exit code 1: libray.so is missing"),
        (CONNECTING + IS_REFUSED, "the cluster at {0} does not accept the token that was found here"),
        (CONNECTING + HAS_OTHER_VERSION, "the cluster at {0} has Ray 2.1.0 with Python 3.9.1, this machine has Ray "),
        (CONNECTING + IS_NO_NODE, "this machine is not a node of the cluster at {0}"),
    ],
    ids=["dies at once", "dies while connecting", "is refused", "another version", "is no node"],
)
def test_error_names_the_cause(
    behaviour: str, message: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "process_in_its_place.py").write_text(
        "import time\nfrom rlexp.processes.child import answer\n"
        f"def serve(request, send):\n    {behaviour}\nanswer(serve)\n"
    )
    monkeypatch.setattr(probe, "_MODULE", "process_in_its_place")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ResourceError) as caught:
        probe.probe_cluster(address)
    assert message.format(address) in caught.value.message


class BusyCluster:
    """Nodes that answer after some seconds, or never; those in ``reached`` accept connections."""

    def __init__(self, answers_s: dict[str, float], reached: set[str]) -> None:
        self.now_s = 0.0
        self.said_s = [0.0]
        self.try_s = 0.0
        """How long a connection is tried that is not accepted."""
        self.missed_s: set[float] = set()
        """When no node accepts connections."""
        self._answers_s = answers_s
        self._reached = reached

    def silent(self) -> dict[str, str]:
        """Wait for the nodes; return what is reported of those that do not answer."""
        nodes = {name: {"NodeManagerAddress": name, "NodeManagerPort": 7} for name in self._answers_s}
        found = probe_process.await_nodes(nodes, self._ready, self._is_reached, self._tell, lambda: self.now_s)
        return {name: f"{answer['silence']}: {answer['error']}" for name, answer in found.items()}

    def _ready(self, pending: list[str]) -> list[str]:
        self.now_s = min([self.now_s + probe_process.LOOK_S, *(self._answers_s[name] for name in pending)])
        return [name for name in pending if self._answers_s[name] <= self.now_s]

    def _is_reached(self, node: dict[str, Any]) -> bool:
        is_reached = node["NodeManagerAddress"] in self._reached and self.now_s not in self.missed_s
        self.now_s += 0.0 if is_reached else self.try_s
        return is_reached

    def _tell(self) -> None:
        self.said_s.append(self.now_s)


def test_nodes_that_answer_one_after_the_other_are_waited_for() -> None:
    names = [f"node{number}" for number in range(8)]
    cluster = BusyCluster({name: 150.0 * number for number, name in enumerate(names)}, set(names))
    assert cluster.silent() == {}
    assert cluster.now_s == 7 * 150.0
    assert max(later - earlier for earlier, later in pairwise(cluster.said_s)) < probe.SILENCE_S


def test_busy_node_and_node_that_is_not_reached_are_told_apart() -> None:
    cluster = BusyCluster({"quick": 3.0, "busy": inf, "gone": inf}, {"quick", "busy"})
    assert cluster.silent() == {
        "busy": "busy: it accepts connections, but has not run the probe within 180 s",
        "gone": "unreached: no connection to gone:7 within 175 s",
    }


def test_nodes_that_are_not_reached_are_given_up_soon() -> None:
    cluster = BusyCluster({"quick": 3.0, "gone": inf}, {"quick"})
    assert list(cluster.silent()) == ["gone"]
    assert cluster.now_s < 60


def test_node_is_not_given_up_for_one_connection_that_failed_after_others_have_answered() -> None:
    answers_s = {**{f"node{number}": 4.0 * number for number in range(11)}, "last": 60.0}
    cluster = BusyCluster(answers_s, {*answers_s})
    cluster.missed_s = {45.0}
    assert cluster.silent() == {}


def test_many_nodes_that_do_not_answer_connections_are_told_as_such() -> None:
    names = {f"node{number}" for number in range(100)}
    cluster = BusyCluster(dict.fromkeys(names, inf), set())
    cluster.try_s = 1.0
    assert {answer.partition(":")[0] for answer in cluster.silent().values()} == {"unreached"}
    assert max(later - earlier for earlier, later in pairwise([*cluster.said_s, cluster.now_s])) < probe.SILENCE_S


MOST_LOOKS = 100_000


class Clock:
    """Time that passes when it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(server: socket.socket, clock: Clock) -> Iterator[Reachability]:
    made = Reachability("127.0.0.1", server.getsockname()[1], clock, interval_s=1.0)
    yield made
    made.close()


def look(watched: Reachability, clock: Clock, until_s: float) -> bool:
    """Look until a time; return whether the server is lost by then."""
    for _ in range(MOST_LOOKS):
        if clock.now_s >= until_s or watched.is_lost():
            break
    return watched.is_lost()


def test_server_that_accepts_is_there(watched: Reachability, clock: Clock) -> None:
    assert not look(watched, clock, 2 * LOST_AFTER_S)


def test_server_that_refuses_is_lost_after_a_while(server: socket.socket, watched: Reachability, clock: Clock) -> None:
    server.close()
    assert not look(watched, clock, LOST_AFTER_S)
    assert look(watched, clock, 2 * LOST_AFTER_S)


def test_server_that_does_not_answer_is_lost(
    watched: Reachability, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reachability, "_is_writable", lambda self: False)
    assert look(watched, clock, 60)


def test_one_success_forgets_the_failures(watched: Reachability, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(Reachability, "_is_writable", lambda self: clock.now_s % 20 > 18)
    assert not look(watched, clock, 4 * LOST_AFTER_S)


def test_silence_is_counted_from_the_first_try_that_failed(
    server: socket.socket, watched: Reachability, clock: Clock
) -> None:
    while clock.now_s < 10:
        assert watched.silent_s() <= 1
    server.close()
    since_s = clock.now_s
    while clock.now_s < 20:
        assert watched.silent_s() <= clock.now_s - since_s + 1
    assert watched.silent_s() >= clock.now_s - since_s - 3


def test_server_that_never_answered_is_not_silent(server: socket.socket, watched: Reachability, clock: Clock) -> None:
    server.close()
    while clock.now_s < 20:
        assert watched.silent_s() == 0


def test_process_ends_with_the_head(server: socket.socket, watched: Reachability, clock: Clock) -> None:
    codes = list[int]()

    def pause(seconds: float) -> None:
        assert not codes
        if clock.now_s > 2 * LOST_AFTER_S:
            server.close()

    joined._watch(lambda: watched, pause, codes.append)
    assert codes == [1]
    assert 3 * LOST_AFTER_S <= clock.now_s < 4 * LOST_AFTER_S


def test_machine_whose_processes_cannot_connect_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    check_loopback()
    monkeypatch.setattr("rlexp.cluster.environment.LOOPBACK", "203.0.113.1")  # of no machine: RFC 5737
    with pytest.raises(ResourceError, match="no usable loopback interface") as caught:
        check_loopback()
    assert str(caught.value.hint).startswith("ip link set lo up")


def test_run_without_any_network_ends_at_once(tmp_path: Path) -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may make no network namespace")
    file = tmp_path / "e.yaml"
    file.write_text("e: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 10}}")
    words = [*alone, sys.executable, "-m", "rlexp", "run", str(file), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "no usable loopback interface" in done.stderr
    assert not (tmp_path / "out").exists()
