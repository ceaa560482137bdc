"""``rlexp join``: plays for trials that are trained elsewhere. It loads neither torch nor Ray."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from contextlib import closing
from typing import Annotated, Final

import typer

from rlexp.commands.boards import Insecure, QueueUrl, required_board
from rlexp.commands.drain_request import DrainRequest
from rlexp.commands.joined_processes import PARENT_VARIABLE, join_in_processes
from rlexp.commands.options import AsJsonLines, Debug
from rlexp.config.keys.user_modules import UserModules, with_current_folder
from rlexp.sessions.choose import seconds_of
from rlexp.terminal.output_streams import outlive_readers
from rlexp.transport.address import BOARD_VARIABLE, BoardAddress

_INTERRUPTED: Final = 130
_LONGEST_HOST: Final = 24

Url = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help=f"The board: redis://HOST, rediss://HOST, or @FILE with the URL. Default: {BOARD_VARIABLE}.",
        show_default=False,
    ),
]
Once = Annotated[bool, typer.Option("--once", help="End with the first task, with exit code 0.")]
Duration = Annotated[str | None, typer.Option("--for", metavar="DURATION", help="Leave after 30s, 10m or 2h.")]
TaskId = Annotated[str | None, typer.Option("--task", metavar="ID", help="Join this task only.")]
Processes = Annotated[int, typer.Option("--processes", min=1, max=1024, metavar="N", help="Join N times.")]
AllowEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-env",
        metavar="ENV",
        help="Play this env where it is a class of the user's (module:Class) or has an env_config; repeatable.",
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import a module where a task asks for it; repeatable."),
]
Silent = Annotated[bool, typer.Option("-q", "--quiet", help="Print only errors.")]


def join(
    url: Url = None,
    once: Once = False,
    duration: Duration = None,
    task: TaskId = None,
    processes: Processes = 1,
    allow_env: AllowEnv = None,
    imports: Modules = None,
    queue: QueueUrl = None,
    insecure: Insecure = False,
    quiet: Silent = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Play for trials that others train with run --board: take a free seat, send what is played, wait again.

    Ctrl-C finishes the fragment, waits until the trainer has it, gives the seat back and exits with 130; a second
    one ends at once. A board that is away is tried again, for ever.
    """
    board = required_board(url, insecure, queue=queue)
    limit_s = None if duration is None else seconds_of(duration, "--for")
    outlive_readers()
    if processes > 1:
        given = {"once": once, "for": duration, "task": task, "allow_env": allow_env, "import": imports}
        if board.queue is not None:
            given["queue"] = str(board.without_passwords().queue)
        words = _words(board, **given, insecure=insecure, quiet=quiet, json=as_json, debug=debug)
        raise typer.Exit(join_in_processes(words, processes, os.environ))
    parent = os.environ.get(PARENT_VARIABLE)
    from rlexp.agents.board.joiner import Joiner, JoinOptions
    from rlexp.agents.board.task_player import TaskPlayer
    from rlexp.agents.board.trusted_code import TrustedCode
    from rlexp.terminal.boards import ActorDisplay
    from rlexp.transport.opening import open_board

    member = _new_member()
    trusted = TrustedCode(frozenset(allow_env or ()), UserModules(tuple(imports or ()), with_current_folder(())))
    request = DrainRequest(limit_s, None if parent is None else int(parent))
    with closing(open_board(board)) as opened, closing(ActorDisplay(as_json, quiet, sys.stderr)) as display, request:
        player = TaskPlayer(opened, member, board.password, trusted, display)
        joiner = Joiner(opened, member, JoinOptions(task, once), player, display.note, request)
        try:
            joiner.run()
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
    raise typer.Exit(request.exit_code)


def _words(board: BoardAddress, **options: str | bool | list[str] | None) -> list[str]:
    """Return the arguments of this command for one of its processes; the password is in the environment."""
    words = [str(board.without_passwords())]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value:
            words += [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]
    return words


def _new_member() -> str:
    """Return a name for this process that no other has."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}-{secrets.token_hex(4)}"
