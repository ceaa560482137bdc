"""``rlexp submit``, ``tasks`` and ``cancel``: tasks on a board that others train. They load neither torch nor Ray."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rlexp.board.messages.address import BOARD_VARIABLE, PASSWORD_VARIABLE
from rlexp.board.messages.credentials import client_token
from rlexp.commands import options
from rlexp.commands.command import DEFAULT_OUT, Panel, argument, option, whole
from rlexp.commands.completion import complete_file
from rlexp.errors import TrialError, UsageError
from rlexp.processes.signals import DrainRequest
from rlexp.terminal.lines import outlive_readers

if TYPE_CHECKING:
    from rlexp.board.client.submit import Submitted, Submitter
    from rlexp.config.load import LoadOptions, Plan

_CANCELLED: Final = "cancelled with rlexp cancel"

File = Annotated[Path | None, argument("FILE", "An experiment file with one trial.", complete_file)]
Board = Annotated[
    str | None,
    option(
        "--board URL",
        "Where trainers wait: redis://HOST, rediss://HOST, or @FILE with the URL. "
        f"Default: {BOARD_VARIABLE}. The password may be in {PASSWORD_VARIABLE}.",
        Panel.BOARD,
    ),
]
Attach = Annotated[
    str | None, option("--attach ID", "Wait for a task that was submitted before, instead of FILE.", Panel.BOARD)
]
Evaluate = Annotated[
    int | None,
    whole(
        "--evaluate N",
        "Play N episodes here with the newest weights, again and again meanwhile.",
        1,
        10**9,
        Panel.BOARD,
    ),
]
NoWait = Annotated[
    bool, option("--no-wait", "Print the task's id and end; rlexp submit --attach ID waits.", Panel.BOARD)
]
AllowEnv = Annotated[
    list[str] | None,
    option(
        "--allow-env ENV",
        "With --attach: the task's env may be a class of its own (module:Class) or have an env_config.",
        Panel.CODE,
    ),
]
AllowClass = Annotated[
    list[str] | None,
    option("--allow-class CLASS", "With --attach: the task's config may name this class (module:Class).", Panel.CODE),
]
OptionalUrl = Annotated[str | None, argument("URL", f"The board; default: {BOARD_VARIABLE}.")]
Words = Annotated[list[str], argument("[URL] ID", "The board, and the task.")]


def submit(
    file: File = None,
    overrides: options.Overrides = None,
    board: Board = None,
    insecure: options.Insecure = False,
    out: options.Out = DEFAULT_OUT,
    name: options.Name = None,
    overwrite: options.Overwrite = False,
    seed: options.Seed = None,
    imports: options.Imports = None,
    names: options.Names = None,
    allow_unknown: options.AllowUnknown = False,
    evaluate: Evaluate = None,
    no_wait: NoWait = False,
    attach: Attach = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    token: options.TokenOption = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
    as_json: options.AsJsonLines = False,
    debug: options.Debug = False,
) -> None:
    """Let a trainer that waits on a board (rlexp join URL --as trainer) train an experiment; wait for its results.

    The results are kept in OUT/NAME, as rlexp run keeps its own. Ctrl-C ends the waiting only: the task goes on.
    """
    from rlexp.board.servers.board import TaskStatus
    from rlexp.commands.requests import load_options, track_flags

    address = options.required_board(board, insecure, "rlexp submit FILE --board redis://HOST:6379")
    own_token = client_token(options.take_token(token))
    check_options(file, attach, no_wait, evaluate)
    outlive_readers()
    reading = replace(load_options(imports, allow_unknown, names=names), flags=track_flags(track))
    plan = None if file is None else checked_plan(file, overrides or (), seed, reading)
    from rlexp.board.client.run import RunPlace
    from rlexp.board.client.submit import SubmitOptions, Submitter
    from rlexp.terminal.tasks import choose_task_display

    how = SubmitOptions(RunPlace(out, name, overwrite, sys.argv), evaluate, not no_wait, own_token)
    with choose_task_display(sys.stdout, sys.stderr, json=as_json, quiet=quiet) as display, DrainRequest() as request:
        done = submit_or_attach(
            Submitter(address, how, display, request), plan, attach, allow_env or (), allow_class or ()
        )
    if no_wait and not as_json:
        print(done.task_id)
    raise typer.Exit(request.exit_code if done.status is None else int(done.status is not TaskStatus.ENDED))


def submit_or_raise(given: Mapping[str, Any]) -> Submitted:
    """Submit for a program, with the arguments of ``rlexp.submit``; raises TrialError if the command would exit."""
    import io

    from rlexp.board.client.run import RunPlace
    from rlexp.board.client.submit import SubmitOptions, Submitter
    from rlexp.board.servers.board import TaskStatus
    from rlexp.config.load import LoadOptions
    from rlexp.rollout.evaluation import never
    from rlexp.terminal.displays import QuietDisplay
    from rlexp.terminal.tasks import TaskDisplay

    file, attach, evaluate, wait = (given[name] for name in ("file", "attach", "evaluate", "wait"))
    address = options.required_board(given["board"], given["insecure"], 'rlexp.submit(FILE, board="redis://HOST:6379")')
    place = RunPlace(Path(given["out"]), given["name"], given["overwrite"], sys.argv)
    own = SubmitOptions(place, evaluate, wait, client_token(options.take_token(given["token"])))
    check_options(file, attach, not wait, evaluate)
    reading = LoadOptions(tuple(given["imports"]))
    plan = None if file is None else checked_plan(Path(file), given["overrides"], given["seed"], reading)
    with QuietDisplay(io.StringIO()) if given["quiet"] else TaskDisplay(sys.stdout, sys.stderr) as display:
        submitter = Submitter(address, own, display, never)
        done = submit_or_attach(submitter, plan, attach, given["allow_env"], given["allow_class"])
    if done.status not in (None, TaskStatus.ENDED):
        hint = None if done.directory is None else f"what came of it is in {done.directory}"
        raise TrialError(f"task {done.task_id} is {done.status}: {done.reason or 'no reason is given'}", hint)
    return done


def check_options(file: str | Path | None, attach: str | None, no_wait: bool, evaluate: int | None) -> None:
    """Raise UsageError if options cannot be combined."""
    if (file is None) == (attach is None):
        message = "submit needs an experiment file" if file is None else "--attach cannot be combined with a file"
        raise UsageError(message, "rlexp submit FILE --board URL, or rlexp submit --attach ID --board URL")
    if no_wait and (attach is not None or evaluate is not None):
        option = "--attach" if attach is not None else "--evaluate"
        raise UsageError(f"--no-wait cannot be combined with {option}", "leave out one of them")


def checked_plan(file: Path, overrides: Sequence[str], seed: int | None, reading: LoadOptions) -> Plan:
    """Return the plan of a file; print its notices, and raise its errors."""
    from rlexp.cluster.room.machine import check_requirements
    from rlexp.config.load import load_plan
    from rlexp.terminal.checking import print_notices

    plan = load_plan([file], overrides, seed, reading)
    print_notices(plan)
    check_requirements(plan)
    options.remember_ones_own(plan)
    return plan


def submit_or_attach(
    submitter: Submitter, plan: Plan | None, attach: str | None, allow_env: Sequence[str], allow_class: Sequence[str]
) -> Submitted:
    """Submit a plan, or wait again for the task ``attach``, which may name allowed code; return how it ended."""
    from rlexp.user_code.trusted_code import TrustedCode

    if plan is not None:
        return submitter.submit(plan)
    return submitter.attach(attach or "", TrustedCode(frozenset(allow_env), classes=frozenset(allow_class)))


def tasks(
    url: OptionalUrl = None,
    insecure: options.Insecure = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List the tasks on a board: who trains them, how many actors play, and how they do.

    Tasks that are over are listed for a week.
    """
    address = options.required_board(url, insecure, "rlexp tasks redis://HOST:6379")
    from rlexp.board.servers import open_board
    from rlexp.terminal.tasks import print_tasks, print_unreadable

    with closing(open_board(address)) as board:
        found = board.tasks()
        print_unreadable(board.unreadable.drain_events())
    print_tasks(found, str(address.without_passwords()), as_json)


def cancel(words: Words, insecure: options.Insecure = False, debug: options.Debug = False) -> None:
    """End a task on a board: its trainer writes a checkpoint, its actors look for other tasks.

    Whoever has the board's password can do this.
    """
    if len(words) > 2:
        raise UsageError("rlexp cancel ends one task", "rlexp cancel URL ID")
    address = options.required_board(
        words[0] if len(words) == 2 else None, insecure, "rlexp cancel redis://HOST:6379 ID"
    )
    from rlexp.board.servers import open_board
    from rlexp.terminal.tasks import print_cancelled, print_unreadable

    task_id = words[-1]
    with closing(open_board(address)) as board:
        found = next((task for task in board.tasks() if task.id == task_id), None)
        print_unreadable(board.unreadable.drain_events())
        if found is None:
            raise UsageError(f"task {task_id} is not on the board", "rlexp tasks lists those that are")
        if found.status.is_over or not board.cancel(task_id, _CANCELLED):
            raise UsageError(f"task {task_id} is over already: {found.status}", "there is nothing to cancel")
    print_cancelled(found)
