"""The board of a run: refuses what actors cannot join, before anything is created; links a trial's process with it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.trial import Trial
from rlexp.display import Display
from rlexp.errors import UsageError
from rlexp.joined_actors.board_thread import BoardLink
from rlexp.sessions.choose import Joining
from rlexp.transport.address import PASSWORD_VARIABLE, BoardAddress
from rlexp.transport.opening import open_board
from rlexp.transport.tokens import MASTER_VARIABLE, read_master, trainer_keys

_WITHOUT: Final = "leave out --board, or write --board none where RLEXP_BOARD is set"
_LONGEST_NAME: Final = 50
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_-]+")


def checked_board(
    trials: Sequence[Trial], board: BoardAddress | None, joining: Joining, display: Display
) -> BoardAddress | None:
    """Return the board without its password, and show how actors join the only trial; None without a board.

    Raises UsageError where actors cannot join it, and BoardError where the board cannot be used.
    """
    if board is None:
        if any("board" in trial.experiment.config.model_fields_set for trial in trials):
            display.on_note(None, "config.board has no effect without --board")
        return None
    if joining.address is not None:
        message = "--board and --address cannot be combined yet: the trainer of a board's task runs in a Ray of its own"
        raise UsageError(message, f"leave out --address, or {_WITHOUT}")
    if len(trials) != 1:
        message = f"a board's task is one trial, and here are {len(trials)}"
        raise UsageError(message, f"choose one of the variants with -o KEY=VALUE; or {_WITHOUT}")
    reason = trials[0].experiment.config.board_obstacle
    if reason is not None:
        raise UsageError(f"actors cannot join {trials[0].experiment.run} over a board: {reason}", _WITHOUT)
    with closing(open_board(board)) as opened:
        opened.tasks()
    shown = replace(board, password="")
    by_password = f"; {PASSWORD_VARIABLE} has its password" if board.password else ""
    config, has_tokens = trials[0].experiment.config, read_master() is not None
    by_token = " --token @FILE, each with a token of its own" if has_tokens else ""
    display.on_note(None, f"actors join with: rlexp join {shown}{by_token}{by_password}")
    if isinstance(config, DQNConfig) and config.board.refused_actors and not has_tokens:
        display.on_note(None, f"config.board.refused_actors has no effect without --keys or {MASTER_VARIABLE}")
    return shown


def refuse_board_of_sweeps(board: BoardAddress | None) -> None:
    """Raise UsageError where a sweep is to have a board."""
    if board is not None:
        raise UsageError("actors cannot join a sweep over a board: a board's task is one trial", _WITHOUT)


def board_link(board: BoardAddress | None, name: str, environment: Mapping[str, str] = os.environ) -> BoardLink | None:
    """Return what links the process of a trial with its board, as a task of its own; None without a board.

    ``name`` is the experiment's. A trial that begins again is another task: what was sent to the one before is not
    mistaken for its own.
    """
    if board is None:
        return None
    address = replace(board, password=environment.get(PASSWORD_VARIABLE, ""))
    task_id = new_task_id(name)
    member = f"trainer-{secrets.token_hex(4)}"
    keys = trainer_keys(read_master(environment), address.password, task_id)
    return BoardLink(open_board(address), task_id, name, member, keys)


def new_task_id(name: str) -> str:
    """Return an id that no other task has, which begins with the name of an experiment."""
    start = _NOT_IN_AN_ID.sub("_", name)[:_LONGEST_NAME].strip("_") or "task"
    return f"{start}-{secrets.token_hex(4)}"
