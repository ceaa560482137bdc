"""``rlexp board``: commands for those who have a board of their own, or a Redis or Valkey for one.

``serve`` starts a board with what is installed on this machine, ``check`` says whether one is fit for training and what
to do if it is not. ``acl`` prints the access rules of roles for a server that somebody else runs, ``keys`` makes a
master key and join tokens.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from rlexp.board.messages.address import BOARD_VARIABLE, BoardAddress, parse_address
from rlexp.board.messages.basics import BoardError
from rlexp.board.messages.credentials import MASTER_VARIABLE, MasterKey, check_actor, read_master
from rlexp.board.servers import open_board, serving
from rlexp.board.servers.probes import ReachError, reach
from rlexp.board.servers.redis_scripts import FIRST_WITH_READ_ONLY_KEYS, OLDEST, ROLES, TRAINER
from rlexp.commands.command import APP_SETTINGS, HELP_OPTIONS, argument, command_class, option, whole
from rlexp.commands.join import Url, join
from rlexp.commands.options import AsJson, Debug, Insecure, required_board
from rlexp.commands.submit import cancel, submit, tasks
from rlexp.errors import RlexpError, UsageError
from rlexp.files import refuse_other_than_file, to_json
from rlexp.processes.signals import DrainRequest
from rlexp.terminal.board import (
    BoardCheck,
    Level,
    ServedBoard,
    print_access,
    print_findings,
    print_served,
    reach_findings,
    refused,
    server_findings,
    unreachable,
)
from rlexp.terminal.lines import outlive_readers

Roles = Annotated[list[str] | None, option("--role ROLE", "This role only; repeatable.")]
AsCommands = Annotated[bool, option("--commands", "As commands for redis-cli (ACL SETUSER).")]
Old = Annotated[bool, option("--old", "For Redis 6.2, where keys that a role reads can also be written by it.")]


def acl(role: Roles = None, as_commands: AsCommands = False, old: Old = False, debug: Debug = False) -> None:
    """Print the access rules that actors, trainers and clients need, for a Redis or Valkey that somebody else runs.

    The lines are for its users.acl or redis.conf, each with a placeholder for the password.
    """
    known = [each.name for each in ROLES]
    if unknown := set(role or ()) - set(known):
        raise UsageError(f"no role is called {min(unknown)}", f"the roles are {', '.join(known)}")
    print_access(role or known, OLDEST if old else FIRST_WITH_READ_ONLY_KEYS, as_commands)


def check(url: Url = None, insecure: Insecure = False, as_json: AsJson = False, debug: Debug = False) -> None:
    """Examine a board: reach, TLS, rights, speed, largest message, memory. Nothing is left on it.

    Each line is ok, a warning, or a problem with what to do about it; exit code 1 if there is a problem.
    """
    board = required_board(url, insecure)
    findings = list(_findings(board))
    print_findings(str(board), findings, as_json)
    raise typer.Exit(int(any(finding.level is Level.PROBLEM for finding in findings)))


def _findings(board: BoardAddress) -> Iterator[BoardCheck]:
    try:
        from rlexp.board.servers.probes import probe
    except ModuleNotFoundError as error:
        raise UsageError("the client library of Redis is not installed", "pip install 'rlexp[redis]'") from error
    try:
        yield from reach_findings(board, reach(board.host, board.port, board.has_tls, board.ca_file))
    except ReachError as error:
        yield unreachable(error)
        return
    try:
        yield from server_findings(probe(board))
    except BoardError as error:
        yield refused(board, error)


_MEMORY_SHARE: Final = 0.5
"""The largest share of the machine's memory: a queue that nobody empties must not take all of it."""
_POLL_S: Final = 0.2

Bind = Annotated[
    str | None, option("--bind ADDRESS", "Listen at this address too, for other machines; 0.0.0.0: at all of IPv4.")
]
Host = Annotated[str | None, option("--host NAME", "The name or address that others type, if not ADDRESS.")]
Port = Annotated[int, whole("--port PORT", "Listen at this port.", 1, 65535)]
Folder = Annotated[
    Path | None,
    option("--dir DIR", "Keep the passwords here. Default: rlexp/board in XDG_STATE_HOME or ~/.local/state."),
]
Certificate = Annotated[Path | None, option("--tls-cert FILE", "Encrypt, with this certificate (PEM).")]
Key = Annotated[Path | None, option("--tls-key FILE", "The certificate's key (PEM).")]
Authority = Annotated[
    Path | None, option("--tls-ca FILE", "The certificates that others need to trust, if it is your own CA.")
]
ServesUnencrypted = Annotated[
    bool, option("--insecure", "Listen at a public address without TLS, where others may read along.")
]

Actors = Annotated[int, whole("--actors N", "Make join tokens for N actors, a file each.", 1, 10_000)]


def serve(
    bind: Bind = None,
    host: Host = None,
    port: Port = 6379,
    folder: Folder = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_ca: Authority = None,
    actors: Actors = 1,
    insecure: ServesUnencrypted = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Start a board on the Valkey or Redis that is installed, and print what trainers and actors type.

    Actors, trainers and clients have passwords of their own, which are kept in DIR, and may do no more than they need.
    Without --bind only this machine reaches it. Ctrl-C ends it, and what is on it is gone.
    """
    from rlexp.cluster.room.machine import this_machine

    tls = _tls_files(tls_cert, tls_key, tls_ca)
    where = serving.binding(bind, host)
    if tls is None and not insecure:
        _refuse_public(where)
    program = serving.find_program()
    serving.check_port(where, port)
    outlive_readers()
    with DrainRequest() as request, serving.ServerFolder(folder) as kept:
        memory = int(this_machine().memory_total * _MEMORY_SHARE)
        passwords = kept.passwords()
        configuration = serving.ServerConfiguration(where, port, program.version[:2], memory, passwords, tls)
        files = serving.write_role_files(kept, configuration, actors)
        with closing(serving.ServerProcess(program, kept.log)) as server:
            server.start(configuration.text())
            address = configuration.address(TRAINER.name)
            url = str(replace(address, username="", password="", ca_file=""))
            authority = tls.authority if tls else None
            print_served(
                ServedBoard(program.title, url, where.is_local, authority, files, memory, _problem_of(address)), as_json
            )
            _wait(server, request)
    raise typer.Exit(request.exit_code)


def _tls_files(certificate: Path | None, key: Path | None, authority: Path | None) -> serving.TlsFiles | None:
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs a certificate and its key", "give both --tls-cert FILE and --tls-key FILE")
    for path in filter(None, (certificate, key, authority)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return serving.TlsFiles(certificate, key, authority)


def _refuse_public(where: serving.Binding) -> None:
    if (public := where.public_address) is not None:
        raise UsageError(
            f"{public} is a public address, and connections would not be encrypted",
            "give --tls-cert and --tls-key, a private address with --bind, or --insecure if nobody can read along",
        )


def _problem_of(address: BoardAddress) -> str:
    """Return why a trainer cannot connect to ``address`` from here, such as a certificate of another name."""
    with closing(open_board(address)) as board:
        try:
            board.tasks()
        except BoardError as error:
            return error.message
    return ""


def _wait(server: serving.ServerProcess, request: DrainRequest) -> None:
    with suppress(KeyboardInterrupt):  # the second Ctrl-C: the server is being ended already
        while not request():
            if server.has_ended:
                raise RlexpError(f"the server has ended: {server.last_words()}", f"see {server.log}")
            time.sleep(_POLL_S)


MASTER_FILE: Final = "master.key"
_MOST_ACTORS: Final = 10_000


def keys(
    url: Annotated[str | None, argument("URL", "The board that the lines to type name; no connection is made.")] = None,
    out: Annotated[Path, option("--out DIR", "Where the files are written; its master key is used again.")] = Path(
        "board-keys"
    ),
    actors: Annotated[list[str] | None, option("--actor NAME", "Make a token for this actor; repeatable.")] = None,
    number: Annotated[int, whole("--actors N", "Make tokens for actor-1 to actor-N.", 0, _MOST_ACTORS)] = 0,
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


_OTHER_NAMES: Final = {
    **dict.fromkeys(("list", "ls", "status", "ps"), "tasks"),
    **dict.fromkeys(("start", "run", "up"), "serve"),
    **dict.fromkeys(("stop", "kill", "end"), "cancel"),
    **dict.fromkeys(("token", "tokens", "key"), "keys"),
    **dict.fromkeys(("rules", "users"), "acl"),
    **dict.fromkeys(("play", "actor", "worker", "trainer"), "join"),
}
"""What people call commands of boards."""


class _BoardCommands(TyperGroup):
    """The commands; the error of an unknown one names the one that was probably meant."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raises UsageError if there is none of that name."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not cmd_name.startswith("-") and not ctx.resilient_parsing:
            close = [_OTHER_NAMES.get(cmd_name.lower()), *get_close_matches(cmd_name, self.commands, n=1)]
            meant = next(filter(None, close), None)
            hint = f"did you mean rlexp board {meant}?" if meant else "rlexp board -h lists the commands"
            raise UsageError(f"unknown command board {cmd_name}", hint)
        return command


board_app = typer.Typer(cls=_BoardCommands, **APP_SETTINGS)


@board_app.callback()
def board() -> None:
    """Set up a board, and train and play over it."""


for command in (serve, check, acl, keys, join, submit, tasks, cancel):
    paragraph = inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]
    short = " ".join(paragraph.split())
    board_app.command(cls=command_class(command), short_help=short, context_settings=HELP_OPTIONS)(command)
