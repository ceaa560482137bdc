"""What a command says where the process that looks at a cluster cannot connect, dies, is refused or waits for nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster import probe, probe_process
from rlexp.errors import ResourceError

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
        (CONNECTING + IS_NO_NODE, "this machine is no node of the cluster at {0}"),
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
