"""``rlexp join``: plays for trials of others, or trains submitted ones. It loads neither torch nor Ray itself.

With ``--processes N`` it starts itself N times and supervises the processes, each with a seat of its own.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rlexp.board.messages.address import BOARD_VARIABLE, BoardAddress
from rlexp.board.messages.credentials import JoinToken
from rlexp.commands.board_keys import required_board, take_master, take_token
from rlexp.commands.command import DEFAULT_OUT, MOST, Panel, flag, option, whole
from rlexp.commands.joined_processes import JoinedProcesses, join_command, join_in_processes
from rlexp.commands.options import AsJsonLines, Debug, Insecure, MasterOption, QueueUrl, TokenOption
from rlexp.errors import TrialError, UsageError
from rlexp.processes.child import PARENT_VARIABLE
from rlexp.processes.signals import DrainRequest
from rlexp.terminal.lines import outlive_readers
from rlexp.text import seconds_of

_OF_SIGNALS: Final = 128
"""Exit codes above this one are exit codes of signals."""
_INTERRUPTED: Final = _OF_SIGNALS + signal.SIGINT
_UNITS: Final = {"MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}


class JoinRole(StrEnum):
    """The work of a process for tasks."""

    ACTOR = "actor"
    TRAINER = "trainer"


_LONGEST_HOST: Final = 24

Url = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help=f"The board: redis://HOST, rediss://HOST, or @FILE with the URL. Default: {BOARD_VARIABLE}.",
        show_default=False,
    ),
]
Once = Annotated[bool, flag("--once", "End with the first task, with exit code 0.", Panel.LIMITS)]
Duration = Annotated[str | None, option("--for", "DURATION", "Leave after 90s, 30m, 2h or 1d.", Panel.LIMITS)]
TaskId = Annotated[str | None, option("--task", "ID", "Join this task only.", Panel.BOARD)]
Processes = Annotated[int, whole("--processes", "N", "Join N times.", 1, 1024, Panel.MACHINES)]
AllowEnv = Annotated[
    list[str] | None,
    option(
        "--allow-env",
        "ENV",
        "Play this env if it is a class of the user's (module:Class) or has an env_config; repeatable.",
        Panel.CODE,
    ),
]
AllowClass = Annotated[
    list[str] | None,
    option(
        "--allow-class",
        "CLASS",
        "Use this class (module:Class) if a task's config names it: a wrapper, torso or callbacks; repeatable.",
        Panel.CODE,
    ),
]
Modules = Annotated[
    list[str] | None, option("--import", "MODULE", "Import a module if a task asks for it; repeatable.", Panel.CODE)
]
Role = Annotated[
    JoinRole,
    typer.Option(
        "--as",
        help="Play for tasks (actor), or train submitted ones (trainer), which loads Ray and PyTorch.",
        rich_help_panel=Panel.BOARD,
    ),
]
Out = Annotated[Path | None, option("--out", "DIR", "Where a trainer keeps the runs of its tasks.", Panel.RESULTS)]
Cpus = Annotated[
    int | None, whole("--cpus", "N", "A trainer leaves tasks alone that need more CPUs.", 1, 10**6, Panel.MACHINES)
]
TrainerAddress = Annotated[
    str | None,
    option(
        ("--address", "--ray-address"),
        "HOST:PORT",
        "A trainer trains on the Ray cluster with this head, as rlexp run --address does.",
        Panel.MACHINES,
    ),
]
MaxMemory = Annotated[
    str | None,
    option("--max-memory", "SIZE", "A trainer leaves tasks alone whose replay needs more, say 8GB.", Panel.MACHINES),
]
Silent = Annotated[bool, flag(("-q", "--quiet"), "Print only errors.", Panel.OUTPUT)]


def join(
    url: Url = None,
    once: Once = False,
    duration: Duration = None,
    task: TaskId = None,
    processes: Processes = 1,
    role: Role = JoinRole.ACTOR,
    out: Out = None,
    cpus: Cpus = None,
    max_memory: MaxMemory = None,
    address: TrainerAddress = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    imports: Modules = None,
    token: TokenOption = None,
    keys: MasterOption = None,
    queue: QueueUrl = None,
    insecure: Insecure = False,
    quiet: Silent = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Play for trials that others train with run --board: take a free seat, send what is played, wait again.

    Ctrl-C finishes the fragment, waits until the trainer has it, gives the seat back and exits with 130; a second
    one ends at once. A board that is away is tried again, for ever. With --as trainer, tasks that were submitted are
    trained here, one after another; then Ctrl-C leaves a checkpoint on the board, from which another trainer goes on.
    """
    from rlexp.cluster.environment import LOCAL
    from rlexp.cluster.session import choose

    board, own_token = required_board(url, insecure, queue=queue), take_token(token)
    of_trainers = {"--out": out, "--cpus": cpus, "--max-memory": max_memory, "--keys": keys, "--address": address}
    if role is JoinRole.ACTOR:
        _refuse_options_of_trainers(of_trainers)
    else:
        take_master(keys, True)
    ray = choose(address, os.environ).address if role is JoinRole.TRAINER else None
    most_bytes = None if max_memory is None else _bytes(max_memory)
    limit_s = None if duration is None else seconds_of(duration, "--for")
    outlive_readers()
    from rlexp.terminal.board import ActorDisplay

    if processes > 1:
        given = {"once": once, "task": task, "allow_env": allow_env, "import": imports, "allow_class": allow_class}
        given |= {"as": role.value, "out": None if out is None else str(out), "max_memory": max_memory}
        given |= {"cpus": None if cpus is None else str(cpus), "address": ray}
        if board.queue is not None:
            given["queue"] = str(board.without_passwords().queue)
        words = _words(board, **given, insecure=insecure, quiet=quiet, json=as_json, debug=debug)
        joined = JoinedProcesses(join_command(words), processes, role.value, limit_s)
        with closing(ActorDisplay(as_json, quiet, sys.stderr)) as display:
            raise typer.Exit(join_in_processes(joined, display.note))
    parent = os.environ.get(PARENT_VARIABLE)
    from rlexp.board.actor.joiner import JoinedTask, Joiner, JoinOptions, Player
    from rlexp.board.actor.trainer import TaskTrainer, TrainerLimits, TrainingOptions
    from rlexp.board.servers import open_board
    from rlexp.user_code.trusted_code import TrustedCode

    member = _new_member(own_token)
    trusted = TrustedCode.of(imports, allow_env, allow_class)
    request = DrainRequest(limit_s, None if parent is None else int(parent))
    with closing(open_board(board)) as opened, closing(ActorDisplay(as_json, quiet, sys.stderr)) as display, request:
        player: Player = JoinedTask(opened, member, board.password, trusted, display, own_token)
        if role is JoinRole.TRAINER:
            words = _words(None, address=ray or LOCAL, insecure=insecure, quiet=quiet, json=as_json, debug=debug)
            limits = TrainerLimits(cpus, most_bytes, in_cluster=ray is not None)
            training = TrainingOptions(board, out or DEFAULT_OUT, limits, words)
            player = TaskTrainer(opened, member, trusted, training, display.note)
        joiner = Joiner(opened, member, JoinOptions(task, once), player, display.note, request)
        try:
            joiner.run()
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
    raise typer.Exit(request.exit_code)


def join_or_raise(options: Mapping[str, Any]) -> None:
    """Join for a program: raises an exception where the command ends with an exit code."""
    try:
        join(**options)
    except typer.Exit as end:
        if end.exit_code == _INTERRUPTED:
            raise KeyboardInterrupt from None
        if end.exit_code > _OF_SIGNALS:
            raise SystemExit(end.exit_code) from None
        if end.exit_code:
            raise TrialError("an actor has failed", "its own error is on stderr") from None


def _refuse_options_of_trainers(given: Mapping[str, object]) -> None:
    """Raise UsageError if an actor was given an option that only trainers have."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is for trainers", f"add --as trainer, or leave out {name}")


def _bytes(text: str) -> int:
    """Return the bytes of a size such as 8GB; raises UsageError if it is not a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]i?B)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--max-memory {text} is not a valid size", "write 8GB or 500MB")
    size = float(match[1]) * _UNITS[match[2]]
    if size > MOST:
        raise UsageError(f"--max-memory {text:.60} is more than {MOST // 10**12} TB", "write 8GB or 500MB")
    return int(size)


def _words(board: BoardAddress | None, **options: str | bool | list[str] | None) -> list[str]:
    """Return the arguments of this command for one of its processes; the password is in the environment."""
    words = [] if board is None else [str(board.without_passwords())]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value:
            words += [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]
    return words


def _new_member(token: JoinToken | None) -> str:
    """Return a name for this process that no other has; with a token it begins with the actor's id."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())[:_LONGEST_HOST]
    process = f"{host}-{secrets.token_hex(4)}"
    return process if token is None else f"{token.actor}/{process}"
