"""The house stays small: files are chapters, rooms have a budget, a name means one class."""

import ast
from collections import Counter

from tests.house.source_tree import MODULES, PACKAGE, imported, lines, path_of, room_of, trees

MOST_ENTRIES = 31
"""Rooms and files at the top of rlexp."""
LONGEST_FILE = 400
SHORTEST_FILE = 80
"""Of a file that only one other imports; a shorter one is a part of that."""
BUDGETS = {
    "agents": (67, 10_950),
    "api": (6, 1_420),
    "board": (39, 9_170),
    "cluster": (20, 4_085),
    "commands": (12, 3_346),
    "compare": (19, 4_545),
    "config": (60, 12_940),
    "envs": (15, 4_060),
    "models": (11, 2_680),
    "optimizers": (9, 2_015),
    "processes": (7, 1_140),
    "replay": (13, 2_765),
    "rollout": (15, 3_985),
    "runs": (14, 3_585),
    "search": (14, 3_515),
    "terminal": (17, 4_163),
    "trackers": (6, 1_020),
    "tuning": (13, 3_160),
    "user_code": (6, 870),
}
"""The most files and lines of a room.

A raise is a decision: make it in the commit that needs it, which says why, and look first for what can go.
"""
MOST_LINES_AT_THE_TOP = 1_980
"""Of the files that are no room."""


def budget_of_today() -> dict[str, tuple[int, int]]:
    """Return the files and lines of each room."""
    files = Counter(room_of(path_of(module)) for module in MODULES)
    length: Counter[str] = Counter()
    for module, number in lines().items():
        length[room_of(path_of(module))] += number
    return {room: (files[room], length[room]) for room in files if (PACKAGE / room).is_dir()}


def test_every_room_keeps_its_budget() -> None:
    today = budget_of_today()
    assert today.keys() == BUDGETS.keys()
    over = [room for room, used in today.items() if any(a > b for a, b in zip(used, BUDGETS[room], strict=True))]
    assert not over, "\n".join(f"{room}: {today[room]} files and lines, of {BUDGETS[room]}" for room in over)


def test_few_things_are_at_the_top() -> None:
    assert len({room_of(path_of(module)) for module in MODULES}) <= MOST_ENTRIES
    assert sum(number for module, number in lines().items() if "/" not in path_of(module)) <= MOST_LINES_AT_THE_TOP


def test_files_are_chapters() -> None:
    importers: dict[str, set[str]] = {module: set() for module in MODULES}
    texts = {node.value for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    named = {text.partition(":")[0] for text in texts if isinstance(text, str)}  # agents, as package.module:Class
    for module, tree in trees().items():
        for name in imported(ast.walk(tree)):
            importers[name].add(module)
    assert not [module for module, number in lines().items() if number > LONGEST_FILE]
    assert not [
        module
        for module, number in lines().items()
        if number < SHORTEST_FILE
        and len(importers[module]) == 1
        and MODULES[module].name != "__init__.py"
        and module not in named
    ]


def test_a_class_name_means_one_class() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}
