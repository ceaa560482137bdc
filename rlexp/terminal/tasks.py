"""The output about tasks of a board: a line of who submitted one (or JSON lines), a line of who plays, the list.

``rlexp submit`` has a display of a run, ``join`` one of an actor, both updated; ``tasks`` and ``cancel`` print once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.config.keys.trial import Trial
from rlexp.files import to_json
from rlexp.runs.directories import as_typed, derived_name
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.rows import earlier_rewards, last_row
from rlexp.terminal.displays import JsonDisplay, QuietDisplay, task_as_json
from rlexp.terminal.lines import GREEN, RED, YELLOW, StatusLine, Table, tolerate_unknown_letters, visible
from rlexp.terminal.trial_view import TrialView
from rlexp.text import MISSING, count, is_known, middle_cut, one_line, percent, score, short, size

if TYPE_CHECKING:
    from rlexp.board.actor.actor import ActorFigures

TAKEN: Final = "●"
FREE: Final = "○"
_MOST_SEATS: Final = 8
"""Most seats of which each is shown; above, the number of taken ones."""
_SHORT_NAME: Final = 16


class TaskDisplay(QuietDisplay):
    """Prints events and the task's progress on stderr, the summary on stdout."""

    def __init__(self, stdout: TextIO, stderr: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stdout)
        self._line = StatusLine(stderr)
        self._clock = clock
        self._shown_s = -self._line.period_s
        self._view: TrialView | None = None
        self._started_s: float | None = None
        self._evaluation = ""

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        super().start(run_directory, trials)
        (trial,) = trials
        self._view = TrialView(trial)
        folder = run_directory / derived_name(trial.name)
        self._view.recall(earlier_rewards(folder))
        row = last_row(folder)
        if row is not None:
            self._view.add(row)
        self._line.print_above(f"results in {as_typed(run_directory)}")

    def on_submitted(self, task_id: str) -> None:
        self._line.print_above(f"submitted as {task_id}")

    def on_note(self, trial: Trial | None, text: str) -> None:
        self._line.print_above(text)

    def on_phase(self, trial: Trial | None, text: str) -> None:
        self._line.print_above(text)

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        assert self._view is not None
        self._view.add(row)

    def on_evaluation(self, version: int, figures: Mapping[str, Any]) -> None:
        mean, low, high = (score(figures.get(f"episode_reward_{name}")) for name in ("mean", "min", "max"))
        episodes = count(figures.get("episodes_this_iter"))
        self._evaluation = mean
        self._line.print_above(
            f"evaluation after {count(version)} updates: mean return {mean} ({low} to {high}) of {episodes} episodes"
        )

    def on_task(self, task: TaskSummary) -> None:
        now_s = self._clock()
        if task.status is TaskStatus.RUNNING and self._started_s is None:
            row = self._view.row if self._view else {}
            self._started_s = now_s - row.get("time_total_s", 0.0)
        if now_s - self._shown_s >= self._line.period_s and not task.status.is_over:
            self._shown_s = now_s
            self._line.show(fitting(self._forms(task, now_s), self._line.columns))

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Print why a task was cancelled; the summary has all else."""
        if status is Status.STOPPED:
            self._line.print_above(f"the task was cancelled: {message or 'no reason is given'}")

    def on_leave(self, task_id: str, board: str) -> None:
        self._line.print_above(f"task {task_id} goes on without this command")
        self._line.print_above(f"  to wait for it again:  rlexp submit --attach {task_id} --board {board}")
        self._line.print_above(f"  to end it:             rlexp cancel {board} {task_id}")

    def finish(self, run: RunRecord) -> None:
        self._line.close()
        super().finish(run)

    def __exit__(self, *error: object) -> None:
        """Leave the cursor on a line of its own."""
        self._line.close()

    def _forms(self, task: TaskSummary, now_s: float) -> Iterator[str]:
        """Yield the line in shorter and shorter forms."""
        row = self._view.row if self._view else {}
        clock = f"{task.status} {short_duration(self._elapsed_s(task, now_s))}"
        progress = self._view.progress(now_s) if self._view and row else None
        left = None if progress is None else progress.seconds_left
        timed = clock if left is None else f"{clock} ({short_duration(left)} left)"
        updates = row.get("info/num_updates", task.figures.get("num_updates"))
        facts = [f"{count(updates)} updates"] if is_known(updates) else []
        reward = row.get("episode_reward_mean", task.figures.get("episode_reward_mean"))
        facts += [f"reward {score(reward)}"] if is_known(reward) else []
        evaluation = [f"evaluation {self._evaluation}"] if self._evaluation else []
        per_s = task.figures.get("updates_per_s")
        rate = f" {count(per_s)}/s" if is_known(per_s) else ""
        named = f"{task.trainer}{rate}" if task.trainer else "none"
        cut = f"{middle_cut(task.trainer, _SHORT_NAME)}{rate}" if task.trainer else "none"
        taken = f"seats {task.num_taken}/{task.num_seats}"
        seats = seats_of(task)
        for parts in (
            [timed, *facts, *evaluation, f"trainer {named}", seats],
            [timed, *facts, *evaluation, f"trainer {cut}", seats],
            [timed, *facts, *evaluation, f"trainer {cut}", taken],
            [timed, *facts, f"trainer {cut}", taken],
            [timed, *facts, *([rate.strip()] if rate else []), taken],
            [timed, *facts, taken],
            [clock, *facts],
        ):
            yield " · ".join(parts)

    def _elapsed_s(self, task: TaskSummary, now_s: float) -> float:
        return task.age_s if self._started_s is None else now_s - self._started_s


def choose_task_display(stdout: TextIO, stderr: TextIO, *, json: bool, quiet: bool) -> QuietDisplay:
    """Return the display for ``--json``, ``-q``, or else the one with a line."""
    if json:
        return JsonDisplay(stdout)
    return QuietDisplay(stdout) if quiet else TaskDisplay(stdout, stderr)


def seats_of(task: TaskSummary) -> str:
    """Return each seat with a mark, ``seats 0 ● 1 ○``; for many, the number of taken ones."""
    if task.num_seats > _MOST_SEATS:
        return f"seats {count(task.num_taken)}/{count(task.num_seats)}"
    return "seats " + " ".join(f"{seat} {TAKEN if seat in task.taken else FREE}" for seat in range(task.num_seats))


def fitting(forms: Iterator[str], columns: int | None) -> str:
    """Return the first form that has at most so many columns, else the last one."""
    last = ""
    for last in forms:
        if columns is None or len(last) <= columns:
            break
    return last


def short_duration(seconds: float) -> str:
    """Return ``45s``, ``1m02``, ``2h05`` or ``3d04h``."""
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02d}h"
    if hours:
        return f"{hours}h{minute:02d}"
    return f"{minutes}m{second:02d}" if minutes else f"{second}s"


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
        if self._as_json:
            self._print_json("note", text=text)
        elif not self._quiet:
            self._line.print_above(text)

    def on_seat(self, seat: int, num_seats: int, task: str, env: str) -> None:
        self._seat, self._before, self._shown_s = f"seat {seat}/{num_seats} {env}", None, self._clock()
        self.note(f"took seat {seat} of {num_seats} in {task}, {env}")

    def on_figures(self, figures: ActorFigures, epsilon: float | None) -> None:
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
