"""What ``rlexp.submit`` and ``rlexp.join`` do: the commands of the same names, for programs and notebooks.

Where a command ends with an error and an exit code, these raise an RlexpError.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from rlexp.board.client.submit import SubmitOptions, Submitted, Submitter
from rlexp.board.messages.tokens import client_token
from rlexp.board.servers.board import TaskStatus
from rlexp.commands import join as joining
from rlexp.commands.board_keys import required_board, take_token
from rlexp.commands.submit import check_options, checked_plan
from rlexp.config.load import LoadOptions
from rlexp.errors import TrialError
from rlexp.rollout.evaluation import never
from rlexp.terminal.submissions import QuietTaskDisplay, TaskDisplay
from rlexp.user_code.trusted_code import TrustedCode

_OF_SIGNALS: Final = 128
"""Exit codes above it are those of signals."""


@dataclass(frozen=True)
class BoardChoice:
    """Which board, whether others may read along on the way there, and by which token its trainers are verified."""

    url: str | None
    insecure: bool
    token: str | None


@dataclass(frozen=True)
class FileChoice:
    """Which experiment file, and how it is read."""

    path: Path
    overrides: Sequence[str]
    seed: int | None
    imports: Sequence[str]


def submit(
    file: FileChoice | None,
    attach: str | None,
    trusted: TrustedCode,
    board: BoardChoice,
    options: SubmitOptions,
    quiet: bool,
) -> Submitted:
    """See :func:`rlexp.submit`."""
    address = required_board(board.url, board.insecure, 'rlexp.submit(FILE, board="redis://HOST:6379")')
    options = replace(options, token=client_token(take_token(board.token)))
    check_options(None if file is None else file.path, attach, not options.waits, options.num_episodes)
    plan = (
        None if file is None else checked_plan(file.path, file.overrides, file.seed, LoadOptions(tuple(file.imports)))
    )
    display = QuietTaskDisplay(io.StringIO()) if quiet else TaskDisplay(sys.stdout, sys.stderr)
    with display:
        submitter = Submitter(address, options, display, never)
        done = submitter.attach(str(attach), trusted) if plan is None else submitter.submit(plan)
    if done.status not in (None, TaskStatus.ENDED):
        hint = None if done.directory is None else f"what came of it is in {done.directory}"
        raise TrialError(f"task {done.task_id} is {done.status}: {done.reason or 'no reason is given'}", hint)
    return done


def join(as_trainer: bool, **options: Any) -> None:
    """See :func:`rlexp.join`; ``options`` are those of the command."""
    role = joining.JoinRole.TRAINER if as_trainer else joining.JoinRole.ACTOR
    try:
        joining.join(**options, role=role)
    except typer.Exit as end:
        if end.exit_code == _OF_SIGNALS + signal.SIGINT:
            raise KeyboardInterrupt from None
        if end.exit_code > _OF_SIGNALS:
            raise SystemExit(end.exit_code) from None
        if end.exit_code:
            raise TrialError("an actor has failed", "its own error is on stderr") from None
