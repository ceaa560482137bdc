"""The output of commands for boards: ``board serve``, ``join`` (a line that is updated, or JSON), ``tasks``."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.board.servers.serving import RoleFiles
from rlexp.files import to_json
from rlexp.terminal.displays import task_as_json
from rlexp.terminal.lines import GREEN, RED, YELLOW, StatusLine, Table, aligned, tolerate_unknown_letters, visible
from rlexp.terminal.submissions import short_duration
from rlexp.text import MISSING, count, middle_cut, one_line, percent, score, short, size

if TYPE_CHECKING:
    from rlexp.board.actor.actor import ActorFigures


@dataclass(frozen=True)
class ServedBoard:
    """A board that has just been started."""

    title: str
    """The program and its version."""
    url: str
    """The URL for others, without a password."""
    is_local: bool
    """Whether only this machine reaches it."""
    authority: Path | None
    """The certificates that others must trust; None if their system's are enough."""
    files: RoleFiles
    max_memory: int
    problem: str
    """Why this machine itself cannot reach it by that address; empty if it can."""


def print_served(board: ServedBoard, as_json: bool) -> None:
    """Print what trainers, actors and clients type; only the files are secret."""
    files = board.files
    if as_json:
        _print_json(board)
        return
    trainer, client, actor = (shlex.quote(str(path)) for path in (files.trainer, files.client, files.actors[0]))
    rows = [
        ("train", f". {trainer}; rlexp run FILE"),
        ("play", f". {actor}; rlexp join"),
        ("train what others submit", f". {trainer}; rlexp join --as trainer"),
        ("submit", f". {client}; rlexp submit FILE"),
        ("examine", f". {trainer}; rlexp board check"),
    ]
    lines = [
        f"{board.title} serves {board.url}; it takes up to {size(board.max_memory)} of memory and none of the disk",
        "",
        *aligned(rows),
        "",
        *_for_others(board),
        "These files have passwords: send them as you would send a private key.",
    ]
    if board.problem:
        lines.append(f"warning: this machine does not reach it by that address: {board.problem}")
    print(visible("\n".join([*lines, "Ctrl-C ends the board; what is on it is gone then."])), flush=True)


def _for_others(board: ServedBoard) -> list[str]:
    actors = board.files.actors
    names = actors[0].name if len(actors) == 1 else f"{actors[0].name} … {actors[-1].name}, one each"
    if board.is_local:
        port = board.url.rpartition(":")[2]
        return [
            "Only this machine reaches it. Others do with --bind ADDRESS, or through a tunnel from there:",
            f"  ssh -N -L {port}:127.0.0.1:{port} USER@THIS_MACHINE",
            f"In both cases they need a copy of one of these files; actors need {names}.",
        ]
    authority = f" and of {board.authority}, whose place stands in RLEXP_BOARD" if board.authority else ""
    return [f"Other machines need a copy of one of these files{authority}; actors need {names}."]


def _print_json(board: ServedBoard) -> None:
    files = {
        name: [str(path) for path in value] if isinstance(value, tuple) else str(value)
        for name, value in vars(board.files).items()
    }
    about = {
        "event": "serving",
        "server": board.title,
        "url": board.url,
        "files": files,
        "max_memory_bytes": board.max_memory,
        "problem": board.problem,
    }
    print(json.dumps(about), flush=True)


_JSON_PERIOD_S: Final = 10.0


class ActorDisplay:
    """Prints what one actor does; owned by its main thread."""

    def __init__(self, as_json: bool, quiet: bool, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Initialise. ``as_json``: print to stdout; else to ``stream``, and with ``quiet`` only errors."""
        self._as_json, self._quiet, self._clock = as_json, quiet, clock
        self._line = StatusLine(stream)
        self._period_s = _JSON_PERIOD_S if as_json else self._line.period_s
        self._seat = ""
        self._shown_s = clock()
        self._before: ActorFigures | None = None
        self._last_return: float | None = None

    def note(self, text: str) -> None:
        """Print an event."""
        if self._as_json:
            self._print_json("note", text=text)
        elif not self._quiet:
            self._line.print_above(text)

    def on_seat(self, seat: int, num_seats: int, task: str, env: str) -> None:
        """Print that a seat was taken."""
        self._seat, self._before, self._shown_s = f"seat {seat}/{num_seats} {env}", None, self._clock()
        self.note(f"took seat {seat} of {num_seats} in {task}, {env}")

    def on_figures(self, figures: ActorFigures, epsilon: float | None) -> None:
        """Print the actor's stats if the last time is long enough ago; ``epsilon`` is None if it changes."""
        if figures.mean_return is not None:
            self._last_return = figures.mean_return
        elapsed_s = self._clock() - self._shown_s
        if elapsed_s < self._period_s:
            return
        self._shown_s += elapsed_s
        before, self._before = self._before, figures
        if self._as_json:
            self._print_json("actor", **asdict(figures), epsilon=epsilon)
        elif not self._quiet:
            line = f"{self._seat} · {line_of(figures, before, elapsed_s, epsilon, self._last_return)}"
            self._line.show(line)

    def on_left(self, figures: ActorFigures, task: str, why: str) -> None:
        """Print that the seat was left, with the actor's totals."""
        if self._as_json:
            self._print_json("left", task=task, why=why, **asdict(figures))
            return
        sent = f"{count(figures.num_env_steps)} steps in {count(figures.num_fragments)} fragments"
        dropped = f", {count(figures.num_dropped)} of them thrown away" if figures.num_dropped else ""
        self.note(f"left seat {figures.seat} of {task}: {why} · {sent}{dropped}")

    def close(self) -> None:
        """Leave the cursor on a line of its own."""
        self._line.close()

    def _print_json(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, "time": time.time(), **values}), file=sys.stdout, flush=True)


def line_of(
    figures: ActorFigures,
    before: ActorFigures | None,
    elapsed_s: float,
    epsilon: float | None,
    mean_return: float | None,
) -> str:
    """Return an actor's stats as a line; rates are over the last ``elapsed_s`` seconds, since ``before``."""
    steps, fragments, sent = (
        (getattr(figures, name) - (0 if before is None else getattr(before, name))) / max(elapsed_s, 1e-9)
        for name in ("num_env_steps", "num_fragments", "num_bytes")
    )
    parts = [
        f"{count(steps)} steps/s",
        f"sent {count(fragments)}/s {size(sent)}/s",
        f"window {figures.num_waiting}/{figures.window}",
        f"waited {percent(figures.wait_share)}",
        f"weights {count(figures.weights_version)}",
    ]
    if epsilon is not None:
        parts.append(f"ε {short(epsilon)}")
    if mean_return is not None:
        parts.append(f"return {score(mean_return)}")
    if not figures.is_connected:
        parts.append("board away")
    return " · ".join(parts)


_LONGEST: Final = 24
"""Longest shown name or trainer, as both may have any length."""
_TASKS: Final = Table(  # an id is never cut, as users type it
    columns=("id", "name", "status", "trainer", "seats", "updates", "reward", "age"),
    by_need=("id", "status", "seats", "updates", "reward", "age", "trainer", "name"),
    numbers=frozenset({"seats", "updates", "reward", "age"}),
    colours={TaskStatus.RUNNING: GREEN, TaskStatus.FAILED: RED, TaskStatus.QUEUED: YELLOW},
)


def print_tasks(tasks: Sequence[TaskSummary], board: str, as_json: bool) -> None:
    """Print ``tasks`` to stdout, a table or one JSON object; if there are none, say so on stderr."""
    if as_json:
        print(to_json({"tasks": [task_as_json(task) for task in tasks]}))
    elif not tasks:
        print(f"no tasks on {board}", file=sys.stderr)
    else:
        _print_table(tasks)


def print_unreadable(events: Sequence[str]) -> None:
    """Print to stderr the unreadable values on a board, a sentence each."""
    for event in events:
        print(f"warning: {visible(event)}", file=sys.stderr)


def _print_table(tasks: Sequence[TaskSummary]) -> None:
    tolerate_unknown_letters(sys.stdout)
    print(*_TASKS.lines([_cells(task) for task in tasks], sys.stdout), sep="\n")
    for task in tasks:
        if task.reason:
            print(f"{task.id}: {one_line(task.reason)}")


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
    """Print the result of cancelling a task; ``task`` is its state before."""
    if task.trainer is None:
        print(f"cancelled {task.id}; nobody trained it")
    else:
        trainer = one_line(task.trainer)
        print(f"cancelled {task.id}; trainer {trainer} saves a checkpoint and ends, and its actors leave")
