"""The board that ``run`` and ``join`` use: what the options and the environment say, checked before anything begins."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Annotated, Final

import typer

from rlexp.board.messages.address import (
    BOARD_VARIABLE,
    NONE,
    PASSWORD_VARIABLE,
    QUEUE_PASSWORD_VARIABLE,
    QUEUE_VARIABLE,
    BoardAddress,
    QueueAddress,
    read_address,
    read_queue_address,
    require_private,
)
from rlexp.board.servers import require_client
from rlexp.cluster.session import OWN, Joining
from rlexp.errors import UsageError
from rlexp.text import has_secrets

_ADD_BOARD: Final = "add --board redis://HOST"
BoardUrl = Annotated[
    str | None,
    typer.Option(
        "--board",
        metavar="URL",
        help="Let actors join the trial over a board: redis://HOST, rediss://HOST, or @FILE with the URL. "
        f"Default: {BOARD_VARIABLE}; none: without. The password may be in {PASSWORD_VARIABLE}.",
    ),
]
QueueUrl = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="URL",
        help="Send fragments over RabbitMQ or MQTT: amqps://USER@HOST, mqtts://USER@HOST, or @FILE. "
        f"Default: {QUEUE_VARIABLE}; none: without. The password may be in {QUEUE_PASSWORD_VARIABLE}.",
    ),
]
NoBoard = Annotated[str | None, typer.Option("--board", metavar="URL", hidden=True, help="Refused, with the reason.")]
"""Of a command that cannot use one; see :func:`refuse_board`."""
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Allow a board or queue without TLS at a public address, where others may read along."
    ),
]


def chosen_board(
    option: str | None,
    insecure: bool,
    environment: MutableMapping[str, str] = os.environ,
    queue: str | None = None,
    joining: Joining = OWN,
) -> BoardAddress | None:
    """Return the board of the option, else of RLEXP_BOARD, with the queue beside it; None without a board.

    Passwords are in the environment from now on, where processes that are started find them. Raises UsageError.
    """
    refuse_typed_passwords(joining, option, queue)
    text = (environment.get(BOARD_VARIABLE, "") if option is None else option).strip()
    if text in ("", NONE):
        if insecure:
            raise UsageError("--insecure is for boards, and none was given", _ADD_BOARD)
        if queue is not None and queue.strip() not in ("", NONE):
            raise UsageError("--queue is for fragments of a board's tasks, and no board was given", _ADD_BOARD)
        return None
    address = read_address(text, environment)
    if not insecure:
        require_private(address)
    if address.password:
        environment[PASSWORD_VARIABLE] = address.password
    return replace(address, queue=_chosen_queue(queue, insecure, environment))


def _chosen_queue(option: str | None, insecure: bool, environment: MutableMapping[str, str]) -> QueueAddress | None:
    text = (environment.get(QUEUE_VARIABLE, "") if option is None else option).strip()
    if text in ("", NONE):
        return None
    address = read_queue_address(text, environment)
    require_client(address)
    if not insecure:
        require_private(address)
    if address.password:
        environment[QUEUE_PASSWORD_VARIABLE] = address.password
    return address


def refuse_typed_passwords(joining: Joining, *addresses: str | None) -> None:
    """Raise UsageError where one of ``addresses``, as typed, has a password, and a cluster's head would keep it."""
    if joining.address is not None and any(has_secrets(address) for address in addresses):
        raise UsageError(
            "the cluster's head keeps the command line, on which there is a password",
            f"set {PASSWORD_VARIABLE} (of a queue: {QUEUE_PASSWORD_VARIABLE}), or write the address to a file: @FILE",
        )


def required_board(
    text: str | None,
    insecure: bool,
    example: str = "rlexp join redis://HOST:6379",
    environment: MutableMapping[str, str] = os.environ,
    queue: str | None = None,
) -> BoardAddress:
    """Return the board that must be given, as in ``example``; see :func:`chosen_board`."""
    board = chosen_board(text, insecure, environment, queue)
    if board is None:
        raise UsageError("no board is given", f"{example}, or set {BOARD_VARIABLE}")
    return board


def refuse_board(option: str | None, reason: str) -> None:
    """Raise UsageError where a board was asked for; one that only the environment names is ignored."""
    if option is not None and option.strip() not in ("", NONE):
        raise UsageError(
            f"--board is for rlexp run: {reason}", "leave out --board, or train one variant with rlexp run"
        )
