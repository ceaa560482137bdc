"""The house holds: a room imports only what lies below it, and the walks of the architecture page are as it says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

import rlexp
from tests.house.source_tree import MODULES, PACKAGE, ROOT, at_the_top, imported, imports, path_of, room_of, trees
from tests.house.walks import WALKS, Station, Trace, report, traced_walks

FLOORS = {
    "__init__": 14,
    "api": 13,
    "cli": 13,
    "commands": 12,
    "tuning": 11,
    "terminal": 10,
    "board": 9,
    "agents": 8,
    "optimizers": 7,
    "compare": 7,
    "trackers": 7,
    "rollout": 6,
    "search": 6,
    "runs": 5,
    "replay": 5,
    "envs": 4,
    "models": 4,
    "policy": 4,
    "cluster": 3,
    "user_code": 2,
    "processes": 1,
    "config": 1,
    "metrics": 0,
    "states": 0,
    "sample_batch": 0,
    "schedules": 0,
    "files": 0,
    "text": 0,
    "errors": 0,
    "callbacks": 0,
}
"""Each room, and each file at the top; docs/architecture.md draws them."""
GROUND = {"states", "sample_batch", "schedules", "text", "errors", "files"}
"""What every room may use, also its neighbours on the ground floor."""
STRANGERS = [{"rollout", "replay"}, {"rollout", "runs"}, {"rollout", "search"}]
"""These rooms do not see each other, though their floors would let them; they meet through protocols."""

OTHERS = "the other files"
"""Of a room, those without a floor of their own; they may import each other."""
FLOORS_WITHIN = {
    "config": {  # a file's way from text to trials goes up
        "presets": 12,
        "load": 12,
        "convert": 11,
        "parsed_experiment": 10,
        "assembly": 9,
        "sweep": 9,
        "variants": 8,
        "validation": 7,
        "reference": 6,
        "rllib": 5,
        "grid": 4,
        "points": 3,
        "domains": 2,
        "translation": 1,
        "command_line": 1,
        "keys": 0,
        "yaml": -1,
        "examples": -1,
    },
    # a client plays as an actor does and reads what a trainer writes
    "board": {"client": 4, "trainer": 3, "actor": 3, "task": 2, "demands": 1, "servers": 1, "messages": 0},
    # the algorithms are on top, R2D2 on Ape-X on DQN, SAC on DDPG, and APPO on IMPALA on A2C
    "agents": {
        "evolution": 6,
        "appo": 6,
        "sac": 6,
        "impala": 5,
        "r2d2": 5,
        "ddpg": 5,
        "a2c": 4,
        "ppo": 4,
        "pqn": 4,
        "apex": 4,
        "actor_critic": 3,
        "dqn": 3,
        "export": 2,
        OTHERS: 1,
        "torch": 0,
    },
    "replay": {"shared_buffers": 3, "shared_rows": 2, OTHERS: 1, "storage": 0},
    "compare": {"report": 3, "sweep_charts": 2, OTHERS: 1, "event_files": 0},
    "cluster": {OTHERS: 3, "pool": 2, "shortcuts": 0, "room": 0},
}
"""The same within a room, by the first name below it."""
ALGORITHMS = ("a2c", "apex", "appo", "ddpg", "dqn", "evolution", "impala", "ppo", "pqn", "r2d2", "sac")
KNOW_AN_ALGORITHM = {"config/keys/agents.py"}
"""Files beside an algorithm's own that import parts or keys of it. None is to be added."""


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path_of(module)) for module in MODULES} - {"__init__", "__main__"}
    assert rooms == FLOORS.keys() - {"__init__"}


def test_no_room_hides_a_public_name() -> None:
    assert not {room_of(path_of(module)) for module in MODULES} & set(rlexp.__all__)


def test_imports_go_down() -> None:
    wrong = []
    for each in imports():
        here = room_of(each.path)
        if not each.module.startswith("rlexp.") or here == "__main__":
            continue
        there = each.module.split(".")[1]
        allowed = here == there or FLOORS[there] < FLOORS[here] or there in GROUND
        if not allowed or {here, there} in STRANGERS:
            wrong.append(f"{each.where}: {here} must not import {there}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", FLOORS_WITHIN)
def test_imports_within_a_room_go_down(room: str) -> None:
    floors, wrong = FLOORS_WITHIN[room], []
    for each in imports():
        names = each.path.removesuffix(".py").split("/")
        if names[0] != room or names[1] == "__init__" or not each.module.startswith(f"rlexp.{room}."):
            continue
        here, there = (name if name in floors else OTHERS for name in (names[1], each.module.split(".")[2]))
        if here != there and floors[there] >= floors[here]:
            wrong.append(f"{each.where}: {here} must not import {there}")
    assert not wrong, "\n".join(wrong)


def test_floors_within_a_room_are_of_what_is_there() -> None:
    there = {(room_of(path_of(module)), module.split(".")[2]) for module in MODULES if module.count(".") > 1}
    listed = {(room, name) for room, floors in FLOORS_WITHIN.items() for name in floors if name != OTHERS}
    assert listed <= there
    complete = {room for room, floors in FLOORS_WITHIN.items() if OTHERS not in floors}
    assert {each for each in there if each[0] in complete} <= listed


def test_algorithms_are_known_to_their_own_files_only() -> None:
    own = tuple(f"{place}{name}" for place in ("agents/", "config/keys/") for name in ALGORITHMS)
    theirs = tuple(f"rlexp.{path.replace('/', '.')}" for path in own)
    knowing = {each.path for each in imports() if each.module.startswith(theirs) and not each.path.startswith(own)}
    assert knowing <= KNOW_AN_ALGORITHM


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    below = {module: set(imported(at_the_top(tree.body))) - {module} for module, tree in trees().items()}
    while leaves := {module for module, needs in below.items() if not needs}:
        below = {module: needs - leaves for module, needs in below.items() if needs}
    assert not below


MOST_FILES = 9
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trace]:
    return traced_walks(tmp_path_factory.mktemp("walks"))


def rows_of_page() -> dict[str, Sequence[tuple[str, str]]]:
    """Return the files of each walk in the page's table; ``*`` behind one says that it is not traced."""
    section = PAGE.partition("## The straight walks")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {name: re.findall(r"`([^`]+)`(\*?)", files) for name, files in rows[1:]}


@pytest.mark.parametrize("name", WALKS)
def test_walk_is_short_and_straight(name: str) -> None:
    files = [station.file for station in WALKS[name]]
    assert len(files) == len(set(files)) <= MOST_FILES
    assert all((PACKAGE / file).is_file() for file in files)


@pytest.mark.parametrize("name", WALKS)
def test_files_of_a_walk_are_entered_in_its_order(name: str, traces: Mapping[str, Trace]) -> None:
    first = traces[name].first_entries(WALKS[name])
    assert None not in first.values(), first
    assert list(first.values()) == sorted(first.values(), key=lambda at: at or 0), first


def test_page_has_these_walks() -> None:
    page = {name: [(f"{path}.py", star) for path, star in files] for name, files in rows_of_page().items()}
    assert page == {
        name: [(station.file, "" if station.function else "*") for station in walk] for name, walk in WALKS.items()
    }


def test_report_has_a_line_for_each_file(traces: Mapping[str, Trace]) -> None:
    lines = list(report(traces))
    assert len(lines) == sum(len(walk) + 4 for walk in WALKS.values())


def test_stays_are_counted_by_thread_within_what_is_asked_for() -> None:
    entered = [(1, "a"), (1, "a"), (2, "b"), (1, "c"), (2, "b"), (1, "a"), (2, "c"), (1, "d")]
    trace = Trace([(thread, Station(file, f"{file}{at}")) for at, (thread, file) in enumerate(entered)])
    assert trace.stays(0, 6) == {"a": 2, "b": 1, "c": 2}
    assert trace.since(5).stays(0, 1) == {"a": 1, "c": 1}
    assert trace.first_entries([Station("c", "c6"), Station("c"), Station("a", "c6")]) == {
        Station("c", "c6"): 6,
        Station("a", "c6"): None,
    }
