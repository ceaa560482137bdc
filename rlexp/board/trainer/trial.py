"""The board of a run, from the command to its trial's process: refusals, records, and the assigned task.

Before anything is created, the driver refuses trials that actors cannot join, and checks what the board needs on the
nodes. It records which task its trial is. The trial's process gets an AssignedTask, and from it the link with the
board. ``rlexp join --as trainer`` hands a task to a run in its environment, and the run ends with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from rlexp.board.messages.address import (
    PASSWORD_VARIABLE,
    QUEUE_PASSWORD_VARIABLE,
    BoardAddress,
    HandedTask,
    ServerAddress,
    handed_task,
)
from rlexp.board.messages.basics import BoardError
from rlexp.board.messages.credentials import MASTER_VARIABLE, read_master, trainer_keys
from rlexp.board.servers import client_modules, open_board
from rlexp.board.servers.board import Board, TaskStatus
from rlexp.board.servers.redis_scripts import ACTOR, TRAINER
from rlexp.board.task import board_keys_of, joinable_trial, new_task_id
from rlexp.board.trainer.link import LEASE_SLACK_S, BoardLink
from rlexp.cluster.probe import REACH_HINT, Question
from rlexp.cluster.room.machine import Cluster
from rlexp.config.keys.trial import Trial
from rlexp.errors import UsageError
from rlexp.files import read_regular
from rlexp.runs.record import EXPERIMENT_FILE, Status
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.standings import Display

_LOOK_S: Final = 0.5
_SIGNATURES: Final = {"cryptography": "redis"}
"""The module for keys of a board, and the extra of rlexp that has it."""
_WITHOUT: Final = "leave out --board, or write --board none if RLEXP_BOARD is set"
_LONGEST_REASON: Final = 500
CUT_OFF_S: Final = 90.0
"""Seconds that a process may continue whose node was cut off: Ray on it ends a minute after it has lost the head."""


@dataclass(frozen=True)
class AssignedTask:
    """The task of a trial on a board."""

    board: BoardAddress
    """The board without its password, which is in the environment."""
    id: str
    member: str = ""
    """The member that already has the right to train it; empty: nobody, the trial's process takes it."""
    epoch: int = 0
    file: str = ""
    """The experiment of a submitted task."""
    lead_wait_s: float = LEASE_SLACK_S
    """Seconds beyond a lease that its process waits for the right to train it."""

    def of_successor(self) -> AssignedTask:
        """Return the task for a new process of the trial that starts while the previous one may still exist.

        It gets a right of its own, so that the board refuses writes of the other one.
        """
        return replace(self, member="", epoch=0, lead_wait_s=CUT_OFF_S)


def checked_board(trials: Sequence[Trial], board: BoardAddress | None, display: Display) -> BoardAddress | None:
    """Return the board without its password, and show how actors join the only trial; None without a board.

    Raises UsageError if actors cannot join it, and BoardError if the board cannot be used.
    """
    if board is None:
        all_keys = (trial.experiment.config.board_keys for trial in trials)
        if any(keys is not None and keys != type(keys)() for keys in all_keys):
            display.on_note(None, "config.board has no effect without --board")
        return None
    joinable_trial(trials, _WITHOUT)
    with closing(open_board(board)) as opened:
        opened.tasks()
    config, has_tokens = trials[0].experiment.config, read_master() is not None
    display.on_note(None, f"actors join with: {_how_to_join(board, has_tokens)}")
    if board.username and not has_tokens:
        display.on_note(None, f"without --keys, actors need the same password as user {board.username} has")
    if board_keys_of(config).refused_actors and not has_tokens:
        display.on_note(None, f"config.board.refused_actors has no effect without --keys or {MASTER_VARIABLE}")
    return board.without_passwords()


def _how_to_join(board: BoardAddress, has_tokens: bool) -> str:
    """Return an actor's command, and where its passwords are; a trainer's user is not an actor's."""
    shown = board.without_passwords()
    if shown.username == TRAINER.name and has_tokens:
        shown = replace(shown, username=ACTOR.name)
    whose = f"the password of user {shown.username}" if shown.username else "its password"
    queue, of_queue = "", ""
    if board.queue is not None:
        queue = f" --queue {shown.queue}"
        of_queue = f"; {QUEUE_PASSWORD_VARIABLE} has the queue's password" if board.queue.password else ""
    by_token = " --token @FILE, each with a token of its own" if has_tokens else ""
    by_password = f"; {PASSWORD_VARIABLE} has {whose}" if board.password else ""
    return f"rlexp join {shown}{queue}{by_token}{by_password}{of_queue}"


def refuse_board_of_sweeps(board: BoardAddress | None) -> None:
    """Raise UsageError if a sweep has a board."""
    if board is not None:
        raise UsageError("actors cannot join a sweep over a board: a board's task is one trial", _WITHOUT)


def with_board(question: Question, board: BoardAddress | None, environment: Mapping[str, str] = os.environ) -> Question:
    """Return a question that also asks each node for the needs of the trainer's end of ``board``."""
    if board is None:
        return question
    modules = client_modules(board)
    if MASTER_VARIABLE in environment:
        modules = _SIGNATURES | modules
    servers = dict(_servers(board))
    hints = {module: f"pip install 'rlexp[{extra}]' on every node" for module, extra in modules.items()}
    for name, server in servers.items():
        itself = f"a node means itself by {server.host}: give an address of the server that every node reaches"
        hints[name] = itself if server.is_loopback else REACH_HINT
    return replace(
        question,
        packages=(*question.packages, *modules),
        servers={name: (server.host, server.port) for name, server in servers.items()},
        files=tuple(dict.fromkeys(os.path.abspath(server.ca_file) for server in servers.values() if server.ca_file)),
        hints=hints,
    )


def loopback_notices(board: BoardAddress | None, cluster: Cluster) -> Iterator[str]:
    """Yield a sentence for each server whose address means another server on each node."""
    if board is None or all(node.is_driver or not (node.machine.cpus or node.machine.gpus) for node in cluster.nodes):
        return
    for name, server in _servers(board):
        if server.is_loopback:
            yield f"{name}: a node means itself by {server.host}; the trial finds its task only through a tunnel there"


def _servers(board: BoardAddress) -> Iterator[tuple[str, ServerAddress]]:
    """Yield the servers that are connected to, by their names in messages."""
    shown = board.without_passwords()
    yield f"the board at {replace(shown, queue=None)}", shown
    if shown.queue is not None and shown.queue.kind != "pubsub":
        yield f"the queue at {shown.queue}", shown.queue


def record_task(
    directory: RunDirectory,
    trials: Sequence[Trial],
    board: BoardAddress | None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Record in the run which task its only trial is; a resumed run continues a task that is not over.

    A submitted task has its id already. Raises BoardError if the board cannot be used.
    """
    if board is None:
        return
    (trial,) = trials
    record, handed = directory.record.trial(trial.name), handed_task(environment)
    if handed is not None:
        record.board_task = handed.id
    elif record.board_task is not None:
        with closing(open_board(board.with_passwords(environment))) as opened:
            if _is_over(opened, record.board_task):
                record.board_task = None
    record.board_task = record.board_task or new_task_id(trial.experiment.name)
    record.board = board.server
    directory.write()


def assigned_task(
    directory: RunDirectory, trial: Trial, board: BoardAddress | None, environment: Mapping[str, str] = os.environ
) -> AssignedTask | None:
    """Return the task for the process of ``trial``; None without a board."""
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
    """Return the link of a trial's process with its board; None without one. ``name`` is the experiment's."""
    if task is None:
        return None
    address = task.board.with_passwords(environment)
    member, epoch = (task.member, task.epoch) if task.member else (f"trainer-{secrets.token_hex(4)}", 0)
    keys = trainer_keys(read_master(environment), address.password, task.id)
    return BoardLink(open_board(address), task.id, name, member, keys, epoch, task.file, task.lead_wait_s)


@contextmanager
def ended_with_parent(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Ask this process to stop, as SIGTERM does, after the process that handed it a task has ended."""
    task, done = handed_task(environment), threading.Event()
    if task is None:
        yield
        return

    def watch(parent: int) -> None:
        while not done.wait(_LOOK_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, args=(task.parent,), name="parent", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def task_failure_reported(
    directory: RunDirectory,
    trials: Sequence[Trial],
    board: BoardAddress | None,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[None]:
    """Report to the board, after the body, that the only trial failed: only this process knows the last try.

    A killed process leaves its lease, which is waited for; another trainer's is respected.
    """
    try:
        yield
    finally:
        if board is not None:
            (trial,) = trials
            record = directory.record.trial(trial.name)
            if record.status is Status.ERROR and record.board_task is not None:
                reason = record.error.summary if record.error else "the trial failed"
                lease_s = board_keys_of(trial.experiment.config).lease_s
                with suppress(BoardError), closing(open_board(board.with_passwords(environment))) as opened:
                    _fail(opened, record.board_task, reason[:_LONGEST_REASON], lease_s, handed_task(environment))


def _fail(board: Board, task_id: str, reason: str, lease_s: float, handed: HandedTask | None) -> None:
    """Set the task to FAILED, by the right that was handed to this run, or else by one of its own."""
    member, epoch = (handed.member, handed.epoch) if handed else (f"driver-{secrets.token_hex(4)}", 0)
    ends_at = time.monotonic() + lease_s + LEASE_SLACK_S
    while not _is_over(board, task_id) and time.monotonic() < ends_at:
        lead = board.lead(task_id, member, lease_s, epoch)
        if lead is not None:
            board.finish(lead, TaskStatus.FAILED, reason)
            return
        time.sleep(_LOOK_S)


def _is_over(board: Board, task_id: str) -> bool:
    return any(task.id == task_id and task.status.is_over for task in board.tasks())
