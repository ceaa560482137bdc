"""What ``rlexp tasks`` prints: the tasks on a board, as many facts of each as the terminal is wide."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.files import to_json
from rlexp.terminal.lines import GREEN, RED, YELLOW, aligned, painted, tolerate_unknown_letters, visible
from rlexp.terminal.submissions import short_duration, task_as_json
from rlexp.text import MISSING, columns_of, count, middle_cut, one_line, score

_COLUMNS: Final = ("id", "name", "status", "trainer", "seats", "updates", "reward", "age")
_BY_NEED: Final = ("id", "status", "seats", "updates", "reward", "age", "trainer", "name")
"""What a narrow terminal shows first."""
_NUMBERS: Final = frozenset({"seats", "updates", "reward", "age"})
_LONGEST: Final = 24
"""Of a name or a trainer: both may be of any length."""
_COLOURS: Final = {TaskStatus.RUNNING: GREEN, TaskStatus.FAILED: RED, TaskStatus.QUEUED: YELLOW}


def print_tasks(tasks: Sequence[TaskSummary], board: str, as_json: bool) -> None:
    """Print ``tasks`` to stdout, a table or one JSON object; that there are none, to stderr."""
    if as_json:
        print(to_json({"tasks": [task_as_json(task) for task in tasks]}))
    elif not tasks:
        print(f"no tasks on {board}", file=sys.stderr)
    else:
        _print_table(tasks)


def print_unreadable(events: Sequence[str]) -> None:
    """Print to stderr what was found on a board and left out, a sentence each."""
    for event in events:
        print(f"warning: {visible(event)}", file=sys.stderr)


def _print_table(tasks: Sequence[TaskSummary]) -> None:
    tolerate_unknown_letters(sys.stdout)
    rows = [_cells(task) for task in tasks]
    columns = _fitting(rows, columns_of(sys.stdout))
    numbers = {index for index, column in enumerate(columns) if column in _NUMBERS}
    header, *lines = aligned([columns, *([row[column] for column in columns] for row in rows)], numbers)
    print(header)
    for task, line in zip(tasks, lines, strict=True):
        colour = _COLOURS.get(task.status)
        head, status, rest = line.rpartition(f"  {task.status}")
        print(line if colour is None else f"{head}{painted(status, colour, sys.stdout)}{rest}")
    for task in tasks:
        if task.reason:
            print(f"{task.id}: {one_line(task.reason)}")


def _fitting(rows: Sequence[dict[str, str]], width: int | None) -> list[str]:
    """Return the columns for which there is room, in their order; an id is never cut: it is typed again."""
    if width is None:
        return list(_COLUMNS)
    chosen: set[str] = set()
    taken = -2
    for column in _BY_NEED:
        taken += max(len(column), *(len(row[column]) for row in rows)) + 2
        if chosen and taken > width:
            break
        chosen.add(column)
    return [column for column in _COLUMNS if column in chosen]


def _cells(task: TaskSummary) -> dict[str, str]:
    figures = task.figures
    return {
        "id": task.id,
        "name": middle_cut(one_line(task.name), _LONGEST) or MISSING,
        "status": task.status,
        "trainer": middle_cut(one_line(task.trainer or ""), _LONGEST) or MISSING,
        "seats": f"{count(task.num_taken)}/{count(task.num_seats)}",
        "updates": count(figures.get("num_updates")),
        "reward": score(figures.get("episode_reward_mean")),
        "age": short_duration(task.age_s),
    }


def print_cancelled(task: TaskSummary) -> None:
    """Print what becomes of a task that was cancelled, which was as ``task`` says until then."""
    if task.trainer is None:
        print(f"cancelled {task.id}; nobody trained it")
    else:
        trainer = one_line(task.trainer)
        print(f"cancelled {task.id}; trainer {trainer} saves a checkpoint and ends, and its actors leave")
