"""The board of a run: refuses what actors cannot join, before anything is created; links a trial's process with it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from rlexp.agents.board.joinable import joinable_trial, new_task_id
from rlexp.config.keys.trial import Trial
from rlexp.display import Display
from rlexp.errors import UsageError
from rlexp.files import read_regular
from rlexp.joined_actors.board_link import LEASE_SLACK_S, BoardLink
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.run_record import EXPERIMENT_FILE, Status
from rlexp.transport.address import PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE, BoardAddress
from rlexp.transport.board import Board, TaskStatus
from rlexp.transport.board_errors import BoardError
from rlexp.transport.boards.access import ACTOR, TRAINER
from rlexp.transport.opening import open_board
from rlexp.transport.tokens import MASTER_VARIABLE, read_master, trainer_keys
from rlexp.tuning.board.handed_task import HandedTask, handed_task

_WITHOUT: Final = "leave out --board, or write --board none where RLEXP_BOARD is set"
_LONGEST_REASON: Final = 500
_LOOK_S: Final = 0.5
CUT_OFF_S: Final = 90.0
"""How long a process may go on whose node was cut off: Ray on it ends a minute after it has lost the head."""


@dataclass(frozen=True)
class AssignedTask:
    """The task that a trial is on a board."""

    board: BoardAddress
    """Without the password, which is in the environment."""
    id: str
    member: str = ""
    """Who has the right to train it already; empty: nobody, the trial's process takes it."""
    epoch: int = 0
    """Of that right."""
    file: str = ""
    """The experiment of a submitted task."""
    lead_wait_s: float = LEASE_SLACK_S
    """How much longer than a lease its process waits for the right to train it."""

    def of_successor(self) -> AssignedTask:
        """Return what another process of the trial needs that begins while the one before may still be there.

        It gets a right of its own, so that the board refuses what the other one writes.
        """
        return replace(self, member="", epoch=0, lead_wait_s=CUT_OFF_S)


def checked_board(trials: Sequence[Trial], board: BoardAddress | None, display: Display) -> BoardAddress | None:
    """Return the board without its password, and show how actors join the only trial; None without a board.

    Raises UsageError where actors cannot join it, and BoardError where the board cannot be used.
    """
    if board is None:
        if any("board" in trial.experiment.config.model_fields_set for trial in trials):
            display.on_note(None, "config.board has no effect without --board")
        return None
    joinable_trial(trials, _WITHOUT)
    with closing(open_board(board)) as opened:
        opened.tasks()
    config, has_tokens = trials[0].experiment.config, read_master() is not None
    display.on_note(None, f"actors join with: {_how_to_join(board, has_tokens)}")
    if board.username and not has_tokens:
        display.on_note(None, f"without --keys, actors need the same password as user {board.username} has")
    if config.board_keys is not None and config.board_keys.refused_actors and not has_tokens:
        display.on_note(None, f"config.board.refused_actors has no effect without --keys or {MASTER_VARIABLE}")
    return board.without_passwords()


def _how_to_join(board: BoardAddress, has_tokens: bool) -> str:
    """Return the command of an actor, and where its passwords are; a trainer's user is not that of an actor."""
    shown = board.without_passwords()
    if shown.username == TRAINER.name and has_tokens:
        shown = replace(shown, username=ACTOR.name)
    whose = f"that of user {shown.username}" if shown.username else "its password"
    queue, of_queue = "", ""
    if board.queue is not None:
        queue = f" --queue {shown.queue}"
        of_queue = f"; {QUEUE_PASSWORD_VARIABLE} has that of the queue" if board.queue.password else ""
    by_token = " --token @FILE, each with a token of its own" if has_tokens else ""
    by_password = f"; {PASSWORD_VARIABLE} has {whose}" if board.password else ""
    return f"rlexp join {shown}{queue}{by_token}{by_password}{of_queue}"


def refuse_board_of_sweeps(board: BoardAddress | None) -> None:
    """Raise UsageError where a sweep is to have a board."""
    if board is not None:
        raise UsageError("actors cannot join a sweep over a board: a board's task is one trial", _WITHOUT)


def record_task(
    directory: RunDirectory,
    trials: Sequence[Trial],
    board: BoardAddress | None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Write down in the run which task its only trial is: a run that is resumed continues a task that is not over.

    A task that was submitted has its id already. Raises BoardError where the board cannot be used.
    """
    if board is None:
        return
    (trial,) = trials
    record, handed = directory.record.trial(trial.name), handed_task(environment)
    if handed is not None:
        record.board_task = handed.id
    elif record.board_task is None or _is_over(board.with_passwords(environment), record.board_task):
        record.board_task = new_task_id(trial.experiment.name)
    record.board = board.server
    directory.write()


def assigned_task(
    directory: RunDirectory, trial: Trial, board: BoardAddress | None, environment: Mapping[str, str] = os.environ
) -> AssignedTask | None:
    """Return what the process of ``trial`` needs to know of its task; None without a board."""
    if board is None:
        return None
    task_id = directory.record.trial(trial.name).board_task
    assert task_id is not None
    handed = handed_task(environment)
    if handed is None:
        return AssignedTask(board, task_id)
    text = read_regular(directory.path / EXPERIMENT_FILE).decode()
    return AssignedTask(board, handed.id, handed.member, handed.epoch, text)


def board_link(task: AssignedTask | None, name: str, environment: Mapping[str, str] = os.environ) -> BoardLink | None:
    """Return what links the process of a trial with its board; None without one. ``name`` is the experiment's."""
    if task is None:
        return None
    address = task.board.with_passwords(environment)
    member, epoch = (task.member, task.epoch) if task.member else (f"trainer-{secrets.token_hex(4)}", 0)
    keys = trainer_keys(read_master(environment), address.password, task.id)
    return BoardLink(open_board(address), task.id, name, member, keys, epoch, task.file, task.lead_wait_s)


@contextmanager
def task_failure_reported(
    directory: RunDirectory,
    trials: Sequence[Trial],
    board: BoardAddress | None,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[None]:
    """Report to the board, after the body, that the only trial has failed: only here is known which try is the last.

    A process that was killed leaves its lease, which is waited for; another trainer's is respected.
    """
    try:
        yield
    finally:
        if board is not None:
            (trial,) = trials
            record = directory.record.trial(trial.name)
            if record.status is Status.ERROR and record.board_task is not None:
                reason = record.error.summary if record.error else "the trial failed"
                with suppress(BoardError), closing(open_board(board.with_passwords(environment))) as opened:
                    _fail(
                        opened, record.board_task, reason[:_LONGEST_REASON], _lease_s(trial), handed_task(environment)
                    )


def _fail(board: Board, task_id: str, reason: str, lease_s: float, handed: HandedTask | None) -> None:
    """Let the task be FAILED, by the right that was handed to this run, or else by one of its own."""
    member, epoch = (handed.member, handed.epoch) if handed else (f"driver-{secrets.token_hex(4)}", 0)
    ends_at = time.monotonic() + lease_s + LEASE_SLACK_S
    while not _is_over_on(board, task_id) and time.monotonic() < ends_at:
        lead = board.lead(task_id, member, lease_s, epoch)
        if lead is not None:
            board.finish(lead, TaskStatus.FAILED, reason)
            return
        time.sleep(_LOOK_S)


def _lease_s(trial: Trial) -> float:
    keys = trial.experiment.config.board_keys
    assert keys is not None  # checked_board has refused the others
    return keys.lease_s


def _is_over(board: BoardAddress, task_id: str) -> bool:
    with closing(open_board(board)) as opened:
        return _is_over_on(opened, task_id)


def _is_over_on(board: Board, task_id: str) -> bool:
    return any(task.id == task_id and task.status.is_over for task in board.tasks())
