"""``--wait``, with a clock and clusters that the test moves."""

from __future__ import annotations

import pytest

from rlexp.cluster.room import Cluster
from rlexp.cluster.room.fit import wait_for_room
from rlexp.errors import ResourceError
from tests.unit.machine.clusters import cluster, trial


class World:
    """A cluster that changes with each look, and a clock that moves while it is waited for."""

    def __init__(self, *looks: Cluster, look_s: float = 0.0) -> None:
        self.looks = list(looks)
        self.look_s = look_s
        self.now_s = 100.0
        self.asked: list[list[dict[str, float]]] = []
        self.reported: list[str] = []
        self.pauses: list[float] = []

    def look(self) -> Cluster:
        self.now_s += self.look_s
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def wait(self, timeout_s: float, *num_workers: int) -> Cluster:
        trials = [trial(num_workers=number) for number in num_workers]
        return wait_for_room(
            trials, self.look, self.asked.append, timeout_s, self.reported.append, lambda: self.now_s, self.pause
        )


def test_no_wait_where_there_is_room() -> None:
    world = World(cluster(4, 4))
    assert world.wait(600.0, 3) is world.looks[0]
    assert (world.asked, world.reported, world.pauses) == ([], [], [])


def test_waits_for_nodes_and_withdraws_what_it_asked_for() -> None:
    small, more, enough = cluster(4), cluster(4, 2), cluster(4, 4)
    world = World(small, small, more, enough)
    assert world.wait(600.0, 1, 7) is enough
    assert world.asked == [[{"CPU": 1.0}] * 8, []]
    assert world.reported == ["waiting for room: 4 of 8 CPUs", "waiting for room: 6 of 8 CPUs"]
    assert world.pauses == [5.0] * 3


def test_what_is_missing_is_not_only_cpus() -> None:
    world = World(cluster(4, 4), cluster(8))
    trials = [trial(num_workers=0, num_cpus_for_driver=6)]
    wait_for_room(trials, world.look, world.asked.append, 9.0, world.reported.append, lambda: 0.0, world.pause)
    assert world.reported == [
        "waiting for room: a needs a node with 6 CPUs for its driver; the largest node 10.0.0.1 has 4"
    ]


def test_time_is_over() -> None:
    world = World(cluster(4), look_s=2.0)
    with pytest.raises(ResourceError) as caught:
        world.wait(12.0, 7)
    assert caught.value.message == (
        "a needs 8 CPUs (1 driver + 7 workers x 1), the cluster has 4 on 1 node, after waiting for 14 s"
    )
    assert caught.value.exit_code == 4
    assert world.pauses == [5.0, 3.0]
    assert world.asked[-1] == []


def test_without_time_the_first_look_decides() -> None:
    world = World(cluster(4))
    with pytest.raises(ResourceError, match="after waiting for 0 s"):
        world.wait(0.0, 7)
    assert (world.asked, world.reported) == ([], [])
