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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rlexp.board.messages.address import BOARD_VARIABLE, BoardAddress
from rlexp.board.messages.basics import Backoff
from rlexp.board.messages.credentials import JoinToken
from rlexp.commands import options
from rlexp.commands.command import DEFAULT_OUT, MOST, Panel, argument, option, whole
from rlexp.errors import TrialError, UsageError
from rlexp.processes.child import PARENT_VARIABLE, Child, own_environment, own_program, start_child
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
    argument("URL", f"The board: redis://HOST, rediss://HOST, or @FILE with the URL. Default: {BOARD_VARIABLE}."),
]
Once = Annotated[bool, option("--once", "End with the first task, with exit code 0.", Panel.LIMITS)]
Duration = Annotated[str | None, option("--for DURATION", "Leave after 90s, 30m, 2h or 1d.", Panel.LIMITS)]
TaskId = Annotated[str | None, option("--task ID", "Join this task only.", Panel.BOARD)]
Processes = Annotated[int, whole("--processes N", "Join N times.", 1, 1024, Panel.MACHINES)]
AllowEnv = Annotated[
    list[str] | None,
    option(
        "--allow-env ENV",
        "Play this env if it is a class of the user's (module:Class) or has an env_config; repeatable.",
        Panel.CODE,
    ),
]
AllowClass = Annotated[
    list[str] | None,
    option(
        "--allow-class CLASS",
        "Use this class (module:Class) if a task's config names it: a wrapper, torso or callbacks; repeatable.",
        Panel.CODE,
    ),
]
Modules = Annotated[
    list[str] | None, option("--import MODULE", "Import a module if a task asks for it; repeatable.", Panel.CODE)
]
Role = Annotated[
    JoinRole,
    option(
        "--as", "Play for tasks (actor), or train submitted ones (trainer), which loads Ray and PyTorch.", Panel.BOARD
    ),
]
Out = Annotated[Path | None, option("--out DIR", "Where a trainer keeps the runs of its tasks.", Panel.RESULTS)]
Cpus = Annotated[
    int | None, whole("--cpus N", "A trainer leaves tasks alone that need more CPUs.", 1, 10**6, Panel.MACHINES)
]
TrainerAddress = Annotated[
    str | None,
    option(
        "--address --ray-address HOST:PORT",
        "A trainer trains on the Ray cluster with this head, as rlexp run --address does.",
        Panel.MACHINES,
    ),
]
MaxMemory = Annotated[
    str | None,
    option("--max-memory SIZE", "A trainer leaves tasks alone whose replay needs more, say 8GB.", Panel.MACHINES),
]
Silent = Annotated[bool, option("-q --quiet", "Print only errors.", Panel.OUTPUT)]


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
    token: options.TokenOption = None,
    keys: options.MasterOption = None,
    queue: options.QueueUrl = None,
    insecure: options.Insecure = False,
    quiet: Silent = False,
    as_json: options.AsJsonLines = False,
    debug: options.Debug = False,
) -> None:
    """Play for trials that others train with run --board: take a free seat, send what is played, wait again.

    Ctrl-C finishes the fragment, waits until the trainer has it, gives the seat back and exits with 130; a second
    one ends at once. A board that is away is tried again, for ever. With --as trainer, tasks that were submitted are
    trained here, one after another; then Ctrl-C leaves a checkpoint on the board, from which another trainer goes on.
    """
    from rlexp.cluster.environment import LOCAL
    from rlexp.cluster.session import choose

    board, own_token = options.required_board(url, insecure, queue=queue), options.take_token(token)
    of_trainers = {"--out": out, "--cpus": cpus, "--max-memory": max_memory, "--keys": keys, "--address": address}
    if role is JoinRole.ACTOR:
        _refuse_options_of_trainers(of_trainers)
    else:
        options.take_master(keys, True)
    ray = choose(address, os.environ).address if role is JoinRole.TRAINER else None
    most_bytes = None if max_memory is None else _bytes(max_memory)
    limit_s = None if duration is None else seconds_of(duration, "--for")
    outlive_readers()
    from rlexp.terminal.tasks import ActorDisplay

    if processes > 1:
        given = {"once": once, "task": task, "allow_env": allow_env, "import": imports, "allow_class": allow_class}
        given |= {"as": role.value, "out": None if out is None else str(out), "max_memory": max_memory}
        given |= {"cpus": None if cpus is None else str(cpus), "address": ray}
        if board.queue is not None:
            given["queue"] = str(board.without_passwords().queue)
        words = _words(board, **given, insecure=insecure, quiet=quiet, json=as_json, debug=debug)
        command = own_program("rlexp", "join", *words)
        with closing(ActorDisplay(as_json, quiet, sys.stderr)) as display:
            raise typer.Exit(join_in_processes(command, processes, role, limit_s, display.note))
    parent = os.environ.get(PARENT_VARIABLE)
    from rlexp.board.actor.joiner import JoinedTask, Joiner, Player
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
        joiner = Joiner(opened, member, player, display.note, request, task, once)
        try:
            joiner.run()
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
    raise typer.Exit(request.exit_code)


def join_or_raise(given: Mapping[str, Any]) -> None:
    """Join for a program: raises an exception where the command ends with an exit code."""
    try:
        join(**given)
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


def _words(board: BoardAddress | None, **given: str | bool | list[str] | None) -> list[str]:
    """Return the arguments of this command for one of its processes; the password is in the environment."""
    words = [] if board is None else [str(board.without_passwords())]
    for name, value in given.items():
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


END_TIMEOUT_S: Final = 30.0
"""Seconds that actors may take to leave when asked to; then they are killed."""
QUICK_S: Final = 60.0
"""Seconds: a process that a signal ends sooner has failed quickly."""
MOST_QUICK: Final = 5
"""Quick failures in a row after which a process is not started again."""
_POLL_S: Final = 0.2


def join_in_processes(
    command: Sequence[str], number: int, role: JoinRole, limit_s: float | None, report: Callable[[str], None]
) -> int:
    """Run a command as so many processes until each has ended; return the exit code of the first that failed.

    Each ends by itself after ``limit_s``; one that is started again gets the remaining time.

    A process that a signal ends is started again after a while; one that ends by itself has said why. A signal to this
    process is passed on to all of them, once. They have their own process group: a terminal sends them no signal.
    """
    with DrainRequest() as request:
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        names = [f"{role} {index + 1} of {number}" for index in range(number)]
        actors = [_Supervised(command, name, Backoff(index), deadline_s, report) for index, name in enumerate(names)]
        try:
            for actor in actors:
                actor.start()
            return _codes(actors, request)
        finally:
            for actor in actors:
                actor.kill()
            for actor in actors:
                actor.reap()


def _codes(actors: Sequence[_Supervised], request: DrainRequest) -> int:
    """Wait until all have ended or their time is over; return the exit code of all of them together."""
    deadline_s: float | None = None
    while True:
        is_asked = request()
        if is_asked and deadline_s is None:
            deadline_s = time.monotonic() + END_TIMEOUT_S
            for actor in actors:
                actor.send(request.signal or signal.SIGTERM)
        for actor in actors:  # all of them: one that is not asked for its exit code stays a zombie
            actor.look(may_start=not is_asked)
        codes = [actor.code for actor in actors]
        if None not in codes or (deadline_s is not None and time.monotonic() > deadline_s):
            return request.exit_code or next((code for code in codes if code), 0)
        time.sleep(_POLL_S)


class _Supervised:
    """Owns one of the processes, and the processes that are started after it in its place."""

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        backoff: Backoff,
        deadline_s: float | None,
        report: Callable[[str], None],
    ) -> None:
        self.code: int | None = None
        """The exit code; None until the process has ended for good."""
        self._command, self._name, self._deadline_s, self._report = list(command), name, deadline_s, report
        self._variables = {**own_environment(os.environ), PARENT_VARIABLE: str(os.getpid())}
        self._backoff = backoff
        self._num_quick = 0
        self._process: Child | None = None
        self._started_s = self._due_s = 0.0

    def start(self) -> None:
        """Start the process with the time that is left; do nothing if none is left."""
        self._started_s = time.monotonic()
        command = self._command
        if self._deadline_s is not None:
            left_s = int(self._deadline_s - self._started_s + 0.5)
            if left_s < 1:
                self.code = 0
                return
            command = [*command, "--for", f"{left_s}s"]
        self._process = start_child(command, environment=self._variables)

    def send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def look(self, may_start: bool) -> None:
        """Notice the end of the process, and start the next one if that is due."""
        if self.code is not None:
            return
        if self._process is None:
            if not may_start:
                self.code = 0
            elif time.monotonic() >= self._due_s:
                self._start_again()
        elif (code := self._process.poll()) is not None:
            self._process = None
            if code >= 0 or not may_start:
                self._end(code)
            else:
                number = signal.Signals(-code)
                self._start_later(f"{self._name} ended by signal {number.value} ({number.name})", 128 + number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def reap(self) -> None:
        """Wait for the end of the killed process."""
        if self._process is not None:
            self._process.wait()

    def _end(self, code: int) -> None:
        self.code = code if code >= 0 else 128 - code
        if code > 0 and code not in _ASKED:
            self._report(f"{self._name} ended with exit code {code}; it is not started again")

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:  # no memory, likely what the one before was killed for; the others go on
            self._start_later(f"{self._name} could not be started ({error.strerror})", 1)

    def _start_later(self, what: str, code: int) -> None:
        """Start another process after a while; after too many quick failures start none and keep ``code``."""
        if time.monotonic() - self._started_s >= QUICK_S:
            self._num_quick = 0
            self._backoff.succeeded()
        self._num_quick += 1
        if self._num_quick >= MOST_QUICK:
            self.code = code
            often = f"{self._num_quick} times, each within {QUICK_S:.0f} s"
            self._report(f"{what} {often}; it is not started again")
            return
        wait_s = self._backoff.failed()
        self._due_s = time.monotonic() + wait_s
        self._report(f"{what}; it is started again in {wait_s:.1f} s")


_ASKED: Final = frozenset(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a process that was asked to leave."""
