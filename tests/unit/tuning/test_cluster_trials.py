"""Trials on a joined cluster, from Tune's callbacks on: what counts as a failure, what moves, what ends.

Which failures of a trial on a cluster count, and which are those of its node.

What a trial that waits lacks, in words, and when that is shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial as TuneTrial

from rlexp.cluster.pool.nodes import Bundle
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.processes.signals import StopRequest
from rlexp.runs.record import Status
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import ERROR_FILE, MOVE_FILE
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import PlainDisplay
from rlexp.tuning.cluster_trials import ClusterTrials
from rlexp.tuning.trial_watch import (
    PATIENCE_S,
    NodeLosses,
    RoomWatch,
    SilentNodes,
    TrialWatch,
    missing_elsewhere,
    missing_room,
)
from rlexp.tuning.tune_callbacks import TrialEvents
from tests.lab.cluster import FakeNodes, FakeServer, make_trial, tune_trial


class Scene:
    """TrialEvents with one trial, which has begun on node ``a``."""

    def __init__(self, out: Path, max_failures: int = 0, config: Mapping[str, Any] | None = None) -> None:
        self._lines = io.StringIO()
        self.nodes = FakeNodes()
        self.now_s = 100.0
        self.ours: Trial = make_trial(max_failures=max_failures, config=config or {})
        self.directory = RunDirectory.create(out, "small", None, ["run"], overwrite=False)
        self.directory.start([self.ours], UserModules())
        display = PlainDisplay(io.StringIO(), self._lines)
        self.silences_s: dict[str, float] = {}
        silent = SilentNodes(lambda node: FakeServer(self.silences_s, node))
        cluster = ClusterTrials(self.nodes, self.directory, display, lambda: self.now_s, lambda seconds: None, silent)
        source = FixedTrials([])
        self.events = TrialEvents(source, self.directory, display, StopRequest(lambda: None), cluster)
        self.trial: Any = tune_trial(self.ours, "a")
        display.start(self.directory.path, [self.ours])
        self.start("a")

    @property
    def folder(self) -> Path:
        return self.directory.trial_directory(self.ours)

    @property
    def status(self) -> Status:
        return self.directory.record.trial(self.ours.name).status

    def start(self, node: str) -> None:
        self.trial.temporary_state.ray_actor, self.trial.status = node, TuneTrial.RUNNING
        self.events.on_trial_start(0, [self.trial], self.trial)

    def fail(self) -> bool:
        """Let the process die: Tune starts the trial again; return whether it is to end instead."""
        self.trial.status = TuneTrial.PENDING
        self.events.on_trial_recover(0, [self.trial], self.trial)
        return self.ends()

    def ends(self) -> bool:
        return self.events.to_end([self.trial]) == [self.trial]

    def complete(self) -> None:
        """Let Tune end the trial."""
        self.events.on_trial_complete(0, [self.trial], self.trial)

    def look(self) -> None:
        self.now_s += 10
        self.events.on_step_end(0, [self.trial])

    def said(self) -> str:
        return self._lines.getvalue()


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """With the arguments that a test has as its parameter."""
    scene = Scene(tmp_path, **getattr(request, "param", {}))
    yield scene
    scene.events.close()
    scene.directory.finish(Status.STOPPED)


patient = pytest.mark.parametrize("scene", [{"max_failures": 1}], indirect=True, ids=["patient"])


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The actors that are killed."""
    killed: list[Any] = []
    monkeypatch.setattr("rlexp.tuning.trial_watch.ray.kill", lambda actor, no_restart: killed.append(actor))
    return killed


@pytest.mark.parametrize("hears", [False, True])
def test_a_process_that_hangs_is_killed_whether_it_has_reported_or_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, killed: list[Any], hears: bool
) -> None:
    now_s = 100.0
    monkeypatch.setattr("rlexp.tuning.trial_watch.RunningClock", lambda: lambda: now_s)
    watch, ours = TrialWatch(scene.directory, PlainDisplay(io.StringIO(), io.StringIO()), lambda: 10.0), scene.ours
    watch.look([scene.trial])
    now_s += 50  # it waits for room
    watch.look([scene.trial])
    watch.begin(ours)
    now_s += 9
    watch.look([scene.trial])
    if hears:
        watch.heard(ours)
        now_s += 9
        watch.look([scene.trial])
    assert killed == []
    now_s += 1
    watch.look([scene.trial])
    watch.close()
    assert killed == ["a"]
    assert watch.failures[ours.name].summary.startswith("no result for 10 s: its env hangs in __init__, reset or step")


def test_lost_node_does_not_count(scene: Scene) -> None:
    for node in ("a", "b"):
        scene.start(node)
        (scene.folder / f"checkpoint_00000{ord(node) - 96}").mkdir()
        scene.nodes.silent.add(node)
        assert not scene.fail()
        address, checkpoint = ("10.0.0.1", "1") if node == "a" else ("10.0.0.2", "2")
        expected = f"its node {address} is lost; it starts again from checkpoint_00000{checkpoint} (not counted"
        assert expected in scene.said()


def test_trial_whose_node_is_silent_is_given_up_once(scene: Scene, killed: list[Any]) -> None:
    scene.nodes.free = {"b": {"CPU": 6.0}}
    scene.silences_s["a"] = 3.0
    scene.look()
    assert scene.said().count("its node 10.0.0.1 does not answer") == 1
    scene.silences_s["a"] = 9.0
    scene.look()
    scene.look()
    assert killed == ["a"]
    assert scene.said().count("does not answer") == 1
    scene.nodes.silent.add("a")
    assert not scene.fail()
    scene.start("b")
    scene.look()
    assert killed == ["a"]


def test_trial_stays_on_a_silent_node_while_no_other_has_room(scene: Scene, killed: list[Any]) -> None:
    scene.nodes.free = {"b": {"CPU": 5.0}}
    scene.silences_s["a"] = 9.0
    scene.look()
    scene.look()
    assert not killed
    note = "waits for its node 10.0.0.1, the others have no room: 1 of its 2 other processes (1 CPU each)"
    assert scene.said().count(note) == 1
    scene.silences_s["a"] = 0.0
    scene.look()
    scene.look()
    assert scene.said().count("its node 10.0.0.1 answers again") == 1
    scene.silences_s["a"] = 9.0
    scene.look()
    scene.nodes.free = {"b": {"CPU": 6.0}}
    scene.look()
    assert killed == ["a"], "another node has room now"


@pytest.mark.parametrize("scene", [{"config": {"num_workers": 6, "min_num_workers": 2}}], indirect=True)
def test_elastic_trial_does_not_stay_on_a_silent_node(scene: Scene, killed: list[Any]) -> None:
    scene.silences_s["a"] = 9.0
    scene.look()
    assert killed == ["a"]


def test_process_that_dies_soon_after_its_node_answers_again_does_not_count(scene: Scene) -> None:
    scene.silences_s["a"] = 5.0
    scene.look()
    scene.silences_s["a"] = 0.0
    scene.look()
    assert not scene.fail()
    assert "its process on node 10.0.0.1 was cut off; it starts again from its beginning (not counted" in scene.said()
    scene.start("a")
    assert scene.fail(), "it was not silent since"


def test_process_that_dies_long_after_its_node_answers_again_counts(scene: Scene) -> None:
    scene.silences_s["a"] = 5.0
    scene.look()
    scene.silences_s["a"] = 0.0
    scene.now_s += 100
    scene.look()
    assert scene.fail()


def test_process_that_dies_before_it_begins_counts_where_no_other_node_is_lost(scene: Scene) -> None:
    scene.nodes.silent.add("a")
    assert not scene.fail()
    assert scene.fail()


def test_process_that_died_alone_counts_and_its_node_is_named(scene: Scene) -> None:
    assert scene.fail()
    scene.complete()
    assert scene.status is Status.ERROR
    assert "the trial's process died on node 10.0.0.1 (killed, out of memory, or ended by its env)" in scene.said()


@patient
def test_max_failures_is_kept(scene: Scene) -> None:
    assert not scene.fail()
    scene.start("b")
    assert scene.fail()


@patient
def test_error_of_an_earlier_process_is_not_reported(scene: Scene) -> None:
    (scene.folder / ERROR_FILE).write_text("ValueError: the track is broken\n\ntrace")
    scene.fail()
    scene.start("a")
    assert scene.fail()
    scene.complete()
    assert "the trial's process died" in scene.said()
    assert "the track is broken" not in scene.said()


def test_error_of_the_process_is_reported(scene: Scene) -> None:
    (scene.folder / ERROR_FILE).write_text("ValueError: the track is broken\n\ntrace")
    assert scene.fail()
    scene.complete()
    assert "ValueError: the track is broken" in scene.said()


def test_trial_on_a_drained_node_is_asked_to_move_once_in_each_process(scene: Scene) -> None:
    scene.look()
    scene.nodes.drained.add("a")
    scene.events.on_step_end(0, [scene.trial])
    assert not (scene.folder / MOVE_FILE).exists(), "it looked again too early"
    for times in (1, 2):
        scene.look()
        scene.look()
        assert (scene.folder / MOVE_FILE).exists()
        assert scene.said().count("its node 10.0.0.1 is about to be taken away") == times
        assert not scene.fail()
        scene.start("a")
        assert not (scene.folder / MOVE_FILE).exists()
    scene.start("b")
    scene.look()
    assert not (scene.folder / MOVE_FILE).exists()


def test_trial_that_waits_says_for_what(scene: Scene) -> None:
    scene.nodes.silent.add("a")
    scene.fail()
    scene.look()
    scene.nodes.free, scene.nodes.groups = {"b": {"CPU": 2.0}}, [scene.trial.placement_group_factory.bundles]
    scene.look()
    assert "waiting for room: a node with 4 CPUs for the driver" in scene.said()
    assert scene.status is Status.RUNNING


def test_trial_without_a_process_cannot_save(scene: Scene) -> None:
    scene.events.training.add(scene.ours.name)
    assert scene.events.can_save
    scene.nodes.silent.add("a")
    scene.fail()
    assert not scene.events.can_save


def test_trial_waits_no_longer_than_its_time(scene: Scene) -> None:
    scene.trial = tune_trial(scene.ours, "a", TuneTrial.PENDING, deadline_s=1.0)
    assert scene.ends()
    scene.complete()
    assert scene.status is Status.ERROR
    assert "its time_budget_s was over before there was room for it" in scene.said()


def test_trial_with_results_ends_well_when_its_time_is_over(scene: Scene) -> None:
    scene.directory.record.trial(scene.ours.name).iterations = 3
    scene.trial = tune_trial(scene.ours, "a", TuneTrial.PENDING, deadline_s=1.0)
    assert scene.ends()
    scene.complete()
    assert scene.status is Status.TERMINATED


def test_lost_head_is_no_failure_of_a_trial(scene: Scene) -> None:
    scene.nodes.head_is_lost = True
    scene.look()
    assert not scene.fail()
    scene.start("b")


NAME = "00000-small"


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes()


@pytest.fixture
def losses(nodes: FakeNodes) -> NodeLosses:
    losses = NodeLosses(nodes, wait=lambda seconds: None)
    losses.begin(NAME, "a")
    return losses


def test_dead_node_is_lost(losses: NodeLosses, nodes: FakeNodes) -> None:
    nodes.declare_dead("a")
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


def test_trial_whose_node_is_not_known_has_lost_none(losses: NodeLosses) -> None:
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


def test_waiting_is_shown_after_a_while_and_when_it_changes() -> None:
    nodes, now_s = FakeNodes(free={"a": {"CPU": 2.0}}, groups=[[DRIVER, WORKER]]), [100.0]
    watch = RoomWatch(nodes, lambda: now_s[0])

    def news(after_s: float, *waiting: str) -> dict[str, str]:
        now_s[0] += after_s
        return watch.news({name: [DRIVER, WORKER] for name in waiting})

    assert not news(0, "one")
    assert news(PATIENCE_S, "one") == {"one": "waiting for room: a node with 4 CPUs for the driver"}
    assert not news(10, "one")
    nodes.free = {"a": {"CPU": 4.0}}
    assert news(10, "one") == {"one": "waiting for room: 1 of its 1 other process (1 CPU each)"}
    assert not news(0)
    assert not news(10, "one"), "it waits anew"
    nodes.groups = [[DRIVER]]
    assert not news(PATIENCE_S + 10, "one"), "it is placed, and waits for its process"
