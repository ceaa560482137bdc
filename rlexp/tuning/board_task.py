"""The board of a run: refuses what actors cannot join, before anything is created; links a trial's process with it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from rlexp.agents.board.joinable import joinable_trial, new_task_id
from rlexp.config.keys.trial import Trial
from rlexp.display import Display
from rlexp.errors import UsageError
from rlexp.joined_actors.board_thread import BoardLink
from rlexp.sessions.choose import Joining
from rlexp.transport.address import PASSWORD_VARIABLE, BoardAddress
from rlexp.transport.credentials import message_key
from rlexp.transport.opening import open_board

_WITHOUT: Final = "leave out --board, or write --board none where RLEXP_BOARD is set"


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
    joinable_trial(trials, _WITHOUT)
    with closing(open_board(board)) as opened:
        opened.tasks()
    shown = replace(board, password="")
    by_password = f"; {PASSWORD_VARIABLE} has its password" if board.password else ""
    display.on_note(None, f"actors join with: rlexp join {shown}{by_password}")
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
    return BoardLink(open_board(address), task_id, name, member, message_key(address.password, task_id))
