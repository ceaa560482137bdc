"""The options that several commands share: the board and keys that they name, and the code that they trust.

They load nothing of what experiments are made of. A board, passwords and keys are checked before anything begins. Code
that a run names is trusted by options, by an answer at a terminal, or by having trained with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
from rlexp.board.messages.credentials import MASTER_VARIABLE, TOKEN_VARIABLE, JoinToken, read_master, read_token
from rlexp.commands.command import (
    OVERRIDE_OPTION,
    ErrorOptions,
    Panel,
    argument,
    as_given,
    duration,
    option,
    whole,
)
from rlexp.commands.completion import complete_agent, complete_env, complete_file, complete_override
from rlexp.errors import UsageError
from rlexp.schedules import LARGEST_SEED
from rlexp.terminal.lines import print_notice_list
from rlexp.text import has_secrets

if TYPE_CHECKING:  # commands that only read results load none of these
    from rlexp.config.load import Plan
    from rlexp.user_code.finding import ModuleFile
    from rlexp.user_code.trusted_code import Part, TrustedCode

Files = Annotated[list[Path], argument("FILE", "Experiment files.", complete_file)]
FilesOrNone = Annotated[
    list[Path] | None, argument("FILE", "Experiment files; none with --algo and --env.", complete_file)
]
Overrides = Annotated[
    list[str] | None,
    option(
        f"{OVERRIDE_OPTION} --override KEY.PATH=VALUE",
        "Override a value in every experiment; repeatable. KEY.PATH=VALUE alone does the same.",
        Panel.TRAINED,
        parser=as_given,
        autocompletion=complete_override,
    ),
]
Seed = Annotated[int | None, whole("--seed N", "Seed for every experiment.", 0, LARGEST_SEED, Panel.TRAINED)]
Out = Annotated[Path, option("--out DIR", "Directory in which runs are created.", Panel.RESULTS, envvar="RLEXP_OUT")]
Name = Annotated[str | None, option("--name NAME", "Name of the directory in OUT.", Panel.RESULTS)]
Overwrite = Annotated[bool, option("--overwrite", "Replace a finished run or sweep of the same name.", Panel.RESULTS)]
DryRun = Annotated[bool, option("--dry-run", "Print what would be trained, create nothing.", Panel.OUTPUT)]
Imports = Annotated[
    list[str] | None,
    option("--import MODULE", "Import a module that registers environments; repeatable.", Panel.TRAINED),
]
Names = Annotated[
    list[str] | None,
    option(
        "--map NAME=MODULE:CLASS", "Use this class for a name of an env or model in RLlib; repeatable.", Panel.TRAINED
    ),
]
AllowUnknown = Annotated[bool, option("--allow-unknown", "Ignore unknown keys, with a notice each.", Panel.TRAINED)]
Fit = Annotated[
    bool, option("--fit", "Reduce workers, replay shards, GPUs and replay to this machine or cluster.", Panel.MACHINES)
]
Address = Annotated[
    str | None,
    option(
        "--address --ray-address HOST:PORT",
        "Train on the Ray cluster with this head (auto: this machine's; local: none). "
        "Default: RLEXP_ADDRESS, then RAY_ADDRESS.",
        Panel.MACHINES,
    ),
]
Wait = Annotated[
    str | None, option("--wait DURATION", "Wait so long (90s, 30m, 2h) until the cluster has room.", Panel.MACHINES)
]
WorkingDir = Annotated[
    bool,
    option("--working-dir", "Send the current folder to all nodes of the cluster (at most 100 MB).", Panel.MACHINES),
]
SearcherName = StrEnum("SearcherName", ["grid", "random", "optuna"])
SchedulerName = StrEnum("SchedulerName", ["fifo", "asha", "hyperband", "median", "pbt"])
"""The names of SCHEDULERS, which come with the keys of experiments."""
Mode = StrEnum("Mode", ["max", "min"])
Searched = Annotated[
    list[str] | None,
    option(
        "--sweep KEY=A,B,C",
        "Search a key over values, lr=1e-3,1e-4, or a sampler, 'lr={loguniform: [1e-5, 1e-2]}'; repeatable.",
        Panel.SEARCHED,
    ),
]
Seeds = Annotated[
    int | None, whole("--seeds N", "Train everything N times, with different seeds.", 1, 10**6, Panel.TRAINED)
]
SeedsOfConfigurations = Annotated[
    int | None,
    whole("--seeds --num-seeds N", "Trials of each configuration, with other seeds.", 1, 10**6, Panel.SEARCHED),
]
TimeBudget = Annotated[
    float | None, duration("--time-budget --time-budget-s", "End all trials after 90s, 30m, 2h or 1d.", Panel.LIMITS)
]
Tracking = StrEnum("Tracking", ["wandb", "mlflow", "none"])
"""The names of TRACKERS, and none of them."""
Track = Annotated[
    list[Tracking] | None,
    option(
        "--track wandb|mlflow|none",
        "Record trials with this tracker too, whatever the file says; none: with none. Repeatable.",
        Panel.RESULTS,
    ),
]
Algo = Annotated[
    str | None,
    option(
        "--algo --run AGENT",
        "Train this agent without a file; needs --env.",
        Panel.TRAINED,
        autocompletion=complete_agent,
    ),
]
Env = Annotated[
    str | None,
    option(
        "--env ENV",
        "The env: a Gymnasium id, or module:Class; with settings that fit it.",
        Panel.TRAINED,
        autocompletion=complete_env,
    ),
]
Stop = Annotated[
    list[str] | None,
    option(
        "--stop METRIC=VALUE",
        "When trials stop: reward=475, steps=1e6, time=30m, any metric; repeatable.",
        Panel.TRAINED,
    ),
]
LearningRate = Annotated[str | None, option("--lr RATE", "Learning rate: -o config.lr=RATE.", Panel.TRAINED)]
MasterOption = Annotated[
    str | None,
    option(
        "--keys @FILE",
        "Accept actors with a join token only: the master key of rlexp board keys. "
        f"Default: what {MASTER_VARIABLE} names.",
        Panel.BOARD,
    ),
]
TokenOption = Annotated[
    str | None,
    option(
        "--token @FILE",
        f"Your join token: tasks of its trainer are played, and no others. Default: what {TOKEN_VARIABLE} names.",
        Panel.BOARD,
    ),
]
BoardUrl = Annotated[
    str | None,
    option(
        "--board URL",
        "Let actors join the trial over a board: redis://HOST, rediss://HOST, or @FILE with the URL. "
        f"Default: {BOARD_VARIABLE}; none: without. The password may be in {PASSWORD_VARIABLE}.",
        Panel.BOARD,
    ),
]
QueueUrl = Annotated[
    str | None,
    option(
        "--queue URL",
        "Send fragments over RabbitMQ or MQTT: amqps://USER@HOST, mqtts://USER@HOST, or @FILE. "
        f"Default: {QUEUE_VARIABLE}; none: without. The password may be in {QUEUE_PASSWORD_VARIABLE}.",
        Panel.BOARD,
    ),
]
NoBoard = Annotated[str | None, option("--board URL", "Refused, with the reason.", hidden=True)]
"""The option of a command that cannot use a board; see :func:`refuse_board`."""
Insecure = Annotated[
    bool,
    option(
        "--insecure",
        "Allow a board or queue without TLS at a public address, where others may read along.",
        Panel.BOARD,
    ),
]
AsJson = Annotated[bool, option("--json", "Print one JSON object instead of text.", Panel.OUTPUT)]
AsJsonLines = Annotated[bool, option("--json", "Print JSON lines, one per event.", Panel.OUTPUT)]
Quiet = Annotated[bool, option("-q --quiet", "Print only errors and the summary.", Panel.OUTPUT)]


def _show_tracebacks(context: typer.Context, debug: bool) -> bool:
    context.ensure_object(ErrorOptions).show_tracebacks = debug
    return debug


Debug = Annotated[bool, typer.Option("--debug", callback=_show_tracebacks, is_eager=True, help="Show tracebacks.")]

ImportsOfRun = Annotated[
    list[str] | None, option("--import MODULE", "Import this module, which the run may name; repeatable.", Panel.CODE)
]
AllowEnv = Annotated[
    list[str] | None, option("--allow-env ENV", "The run may play this env of a module; repeatable.", Panel.CODE)
]
AllowClass = Annotated[
    list[str] | None, option("--allow-class MODULE:CLASS", "The run may name this class; repeatable.", Panel.CODE)
]
AllowStorage = Annotated[
    list[str] | None, option("--allow-storage URL", "The run may use this storage; repeatable.", Panel.CODE)
]


def trusted_code(
    imports: Iterable[str] | None,
    envs: Iterable[str] | None,
    classes: Iterable[str] | None,
    storages: Iterable[str] | None,
) -> TrustedCode:
    """Return the code that options trust; other code is asked for if somebody can answer."""
    from rlexp.user_code.trusted_code import TrustedCode

    can_answer = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return TrustedCode.of(imports, envs, classes, storages, ask_at_terminal if can_answer else None)


def ask_at_terminal(part: Part, file: ModuleFile) -> bool:
    """Show the file that would be run; return whether the user allows it."""
    print(f"the run names {part.name!r}, which you have not trained with, or which has changed since:", file=sys.stderr)
    print(f"  {file.file!r}\n  sha256 {file.sha256}", file=sys.stderr)
    print("run this file, now and in later commands? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def remember_ones_own(plan: Plan) -> None:
    """Remember the code and storages of files that this user trains; print a note if that is not possible."""
    from rlexp.board.messages.address import handed_task
    from rlexp.user_code.memory import remember_plan

    if handed_task() is not None:  # the file is a stranger's, whose parts were allowed on the call that joined
        return
    notice = remember_plan(plan)
    if notice is not None:
        print_notice_list([notice], "")


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
    from rlexp.board.servers import queue_opener

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
