"""The board that a command uses, and its keys: options and environment, checked before anything begins.

``run``, ``resume``, ``join`` and ``submit`` have the options; ``rlexp board keys`` makes the master key and the tokens.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
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
    parse_address,
    read_address,
    read_queue_address,
    require_private,
)
from rlexp.board.messages.credentials import (
    MASTER_VARIABLE,
    TOKEN_VARIABLE,
    JoinToken,
    MasterKey,
    check_actor,
    read_master,
    read_token,
)
from rlexp.board.servers import queue_opener
from rlexp.commands.command import option, whole
from rlexp.commands.options import AsJson, Debug
from rlexp.errors import UsageError
from rlexp.files import refuse_other_than_file, to_json
from rlexp.text import has_secrets

MASTER_FILE: Final = "master.key"
_MOST_ACTORS: Final = 10_000


def keys(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The board that the lines to type name; no connection is made.")
    ] = None,
    out: Annotated[Path, option("--out", "DIR", "Where the files are written; its master key is used again.")] = Path(
        "board-keys"
    ),
    actors: Annotated[list[str] | None, option("--actor", "NAME", "Make a token for this actor; repeatable.")] = None,
    number: Annotated[int, whole("--actors", "N", "Make tokens for actor-1 to actor-N.", 0, _MOST_ACTORS)] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a master key for the trainer, and join tokens for its actors.

    With them, nobody can send fragments or weights by the board's password alone. The master key stays with who trains;
    each actor gets its own token, one line. Made again, a token is the same: board.refused_actors ends one.
    """
    names = [*(actors or ()), *(f"actor-{index + 1}" for index in range(number))]
    address = str(parse_address(url).without_passwords()) if url else f"${BOARD_VARIABLE}"
    if not names and not (out / MASTER_FILE).exists():
        raise UsageError("no actor is given", "add --actor NAME for each, or --actors N")
    for name in names:
        check_actor(name)
    master = _master_of(out)
    files = {name: _write_secret(out / f"{name}.token", master.token(name).to_text()) for name in dict.fromkeys(names)}
    if as_json:
        print(to_json({"master": str(out / MASTER_FILE), "tokens": {name: str(file) for name, file in files.items()}}))
        return
    print(f"master key  {out / MASTER_FILE}")
    for file in files.values():
        print(f"token       {file}")
    print(f"\ntrain  rlexp run FILE --board {address} --keys @{out / MASTER_FILE}")
    print(f"play   rlexp join {address} --token @FILE, each with a token of its own")


def take_master(option: str | None, has_board: bool) -> None:
    """Check the master key of the option, else of the environment; put it where the trial's process finds it.

    Raises UsageError.
    """
    if option is not None and not has_board:
        raise UsageError("--keys is for boards, and none was given", "add --board redis://HOST")
    if not has_board:
        return
    _take(option, "--keys", MASTER_VARIABLE)
    master = read_master()
    if master is not None:
        master.keys("")  # raises if it cannot sign
        os.environ[MASTER_VARIABLE] = master.to_text()


def take_token(option: str | None) -> JoinToken | None:
    """Return the token of the option, else of the environment; further processes find it there too.

    Raises UsageError.
    """
    _take(option, "--token", TOKEN_VARIABLE)
    token = read_token()
    if token is not None:
        token.keys("")  # raises if it cannot verify
        os.environ[TOKEN_VARIABLE] = token.to_text()
    return token


def _take(option: str | None, name: str, variable: str) -> None:
    if option is None:
        return
    if not option.startswith("@"):
        raise UsageError(
            f"{name} takes @FILE: what is typed here, everybody on this machine can read",
            f"write it into a file that is yours alone, or set {variable}",
        )
    os.environ[variable] = option


def _master_of(folder: Path) -> MasterKey:
    """Return the master key in ``folder``; make one if there is none."""
    path = folder / MASTER_FILE
    if path.exists():
        master = read_master({MASTER_VARIABLE: f"@{path}"})
        if master is None:
            raise UsageError(
                f"{path} is empty", "delete it for a new master key; then all tokens have to be made again"
            )
        return master
    master = MasterKey.new()
    _write_secret(path, master.to_text())
    return master


def _write_secret(path: Path, text: str) -> Path:
    """Write a line to a file that only its owner can read, from its creation on."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_other_than_file(path)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "choose another folder with --out") from error
    return path


_ADD_BOARD: Final = "add --board redis://HOST"


def chosen_board(
    option: str | None, insecure: bool, queue: str | None = None, in_cluster: bool = False
) -> BoardAddress | None:
    """Return the board of the option, else of RLEXP_BOARD, with its queue; None without a board.

    Passwords are in the environment from now on, for the processes that are started. Raises UsageError.
    """
    if in_cluster:
        refuse_typed_passwords(option, queue)
    text = (os.environ.get(BOARD_VARIABLE, "") if option is None else option).strip()
    if text in ("", NONE):
        if insecure:
            raise UsageError("--insecure is for boards, and none was given", _ADD_BOARD)
        if queue is not None and queue.strip() not in ("", NONE):
            raise UsageError("--queue is for fragments of a board's tasks, and no board was given", _ADD_BOARD)
        return None
    address = read_address(text)
    if not insecure:
        require_private(address)
    if address.password:
        os.environ[PASSWORD_VARIABLE] = address.password
    return replace(address, queue=_chosen_queue(queue, insecure))


def _chosen_queue(option: str | None, insecure: bool) -> QueueAddress | None:
    text = (os.environ.get(QUEUE_VARIABLE, "") if option is None else option).strip()
    if text in ("", NONE):
        return None
    address = read_queue_address(text)
    queue_opener(address)  # raises if its client library is not installed
    if not insecure:
        require_private(address)
    if address.password:
        os.environ[QUEUE_PASSWORD_VARIABLE] = address.password
    return address


def refuse_typed_passwords(*addresses: str | None) -> None:
    """Raise UsageError if a typed address has a password, which the head of a cluster would keep."""
    if any(has_secrets(address) for address in addresses):
        raise UsageError(
            "the cluster's head keeps the command line, on which there is a password",
            f"set {PASSWORD_VARIABLE} (of a queue: {QUEUE_PASSWORD_VARIABLE}), or write the address to a file: @FILE",
        )


def required_board(
    text: str | None, insecure: bool, example: str = "rlexp join redis://HOST:6379", queue: str | None = None
) -> BoardAddress:
    """Return the board that must be given, as in ``example``; see :func:`chosen_board`."""
    board = chosen_board(text, insecure, queue)
    if board is None:
        raise UsageError("no board is given", f"{example}, or set {BOARD_VARIABLE}")
    return board


def refuse_board(option: str | None, reason: str) -> None:
    """Raise UsageError if a board was asked for; a board that only the environment names is ignored."""
    if option is not None and option.strip() not in ("", NONE):
        raise UsageError(
            f"--board is for rlexp run: {reason}", "leave out --board, or train one variant with rlexp run"
        )
