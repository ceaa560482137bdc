"""The options that several commands share, and the code that they trust.

They load nothing of what experiments are made of. Code that a run names is trusted by options, by an answer at a
terminal, or by having trained with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlexp.board.messages.address import BOARD_VARIABLE, PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE, QUEUE_VARIABLE
from rlexp.board.messages.credentials import MASTER_VARIABLE, TOKEN_VARIABLE
from rlexp.commands.command import OVERRIDE_OPTION, ErrorOptions, Panel, as_given, duration, flag, option, whole
from rlexp.commands.completion import complete_agent, complete_env, complete_file, complete_override
from rlexp.schedules import LARGEST_SEED
from rlexp.terminal.lines import print_notice_list

if TYPE_CHECKING:  # commands that only read results load none of these
    from rlexp.config.plan import Plan
    from rlexp.user_code.finding import ModuleFile
    from rlexp.user_code.trusted_code import Part, TrustedCode

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Experiment files.", show_default=False, autocompletion=complete_file),
]
FilesOrNone = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="Experiment files; none with --algo and --env.",
        show_default=False,
        autocompletion=complete_file,
    ),
]
Overrides = Annotated[
    list[str] | None,
    option(
        (OVERRIDE_OPTION, "--override"),
        "KEY.PATH=VALUE",
        "Override a value in every experiment; repeatable. KEY.PATH=VALUE alone does the same.",
        Panel.TRAINED,
        parser=as_given,
        autocompletion=complete_override,
    ),
]
Seed = Annotated[int | None, whole("--seed", "N", "Seed for every experiment.", 0, LARGEST_SEED, Panel.TRAINED)]
Out = Annotated[Path, option("--out", "DIR", "Directory in which runs are created.", Panel.RESULTS, envvar="RLEXP_OUT")]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the directory in OUT.", rich_help_panel=Panel.RESULTS)
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace a finished run or sweep of the same name.", Panel.RESULTS)]
DryRun = Annotated[bool, flag("--dry-run", "Print what would be trained, create nothing.", Panel.OUTPUT)]
Imports = Annotated[
    list[str] | None,
    option("--import", "MODULE", "Import a module that registers environments; repeatable.", Panel.TRAINED),
]
Names = Annotated[
    list[str] | None,
    option(
        "--map",
        "NAME=MODULE:CLASS",
        "Use this class for a name of an env or model in RLlib; repeatable.",
        Panel.TRAINED,
    ),
]
AllowUnknown = Annotated[bool, flag("--allow-unknown", "Ignore unknown keys, with a notice each.", Panel.TRAINED)]
Fit = Annotated[
    bool, flag("--fit", "Reduce workers, replay shards, GPUs and replay to this machine or cluster.", Panel.MACHINES)
]
Address = Annotated[
    str | None,
    option(
        ("--address", "--ray-address"),
        "HOST:PORT",
        "Train on the Ray cluster with this head (auto: this machine's; local: none). "
        "Default: RLEXP_ADDRESS, then RAY_ADDRESS.",
        Panel.MACHINES,
    ),
]
Wait = Annotated[
    str | None, option("--wait", "DURATION", "Wait so long (90s, 30m, 2h) until the cluster has room.", Panel.MACHINES)
]
WorkingDir = Annotated[
    bool, flag("--working-dir", "Send the current folder to all nodes of the cluster (at most 100 MB).", Panel.MACHINES)
]
SearcherName = StrEnum("SearcherName", ["grid", "random", "optuna"])
SchedulerName = StrEnum("SchedulerName", ["fifo", "asha", "hyperband", "median", "pbt"])
"""The names of SCHEDULERS, which come with the keys of experiments."""
Mode = StrEnum("Mode", ["max", "min"])
Searched = Annotated[
    list[str] | None,
    option(
        "--sweep",
        "KEY=A,B,C",
        "Search a key over values, lr=1e-3,1e-4, or a sampler, 'lr={loguniform: [1e-5, 1e-2]}'; repeatable.",
        Panel.SEARCHED,
    ),
]
Seeds = Annotated[
    int | None, whole("--seeds", "N", "Train everything N times, with different seeds.", 1, 10**6, Panel.TRAINED)
]
SeedsOfConfigurations = Annotated[
    int | None,
    whole(("--seeds", "--num-seeds"), "N", "Trials of each configuration, with other seeds.", 1, 10**6, Panel.SEARCHED),
]
TimeBudget = Annotated[
    float | None,
    duration(("--time-budget", "--time-budget-s"), "End all trials after 90s, 30m, 2h or 1d.", Panel.LIMITS),
]
Tracking = StrEnum("Tracking", ["wandb", "mlflow", "none"])
"""The names of TRACKERS, and none of them."""
Track = Annotated[
    list[Tracking] | None,
    option(
        "--track",
        "wandb|mlflow|none",
        "Record trials with this tracker too, whatever the file says; none: with none. Repeatable.",
        Panel.RESULTS,
    ),
]
Algo = Annotated[
    str | None,
    option(
        ("--algo", "--run"),
        "AGENT",
        "Train this agent without a file; needs --env.",
        Panel.TRAINED,
        autocompletion=complete_agent,
    ),
]
Env = Annotated[
    str | None,
    option(
        "--env",
        "ENV",
        "The env: a Gymnasium id, or module:Class; with settings that fit it.",
        Panel.TRAINED,
        autocompletion=complete_env,
    ),
]
Stop = Annotated[
    list[str] | None,
    option(
        "--stop",
        "METRIC=VALUE",
        "When trials stop: reward=475, steps=1e6, time=30m, any metric; repeatable.",
        Panel.TRAINED,
    ),
]
LearningRate = Annotated[str | None, option("--lr", "RATE", "Learning rate: -o config.lr=RATE.", Panel.TRAINED)]
MasterOption = Annotated[
    str | None,
    option(
        "--keys",
        "@FILE",
        "Accept actors with a join token only: the master key of rlexp board keys. "
        f"Default: what {MASTER_VARIABLE} names.",
        Panel.BOARD,
    ),
]
TokenOption = Annotated[
    str | None,
    option(
        "--token",
        "@FILE",
        f"Your join token: tasks of its trainer are played, and no others. Default: what {TOKEN_VARIABLE} names.",
        Panel.BOARD,
    ),
]
BoardUrl = Annotated[
    str | None,
    option(
        "--board",
        "URL",
        "Let actors join the trial over a board: redis://HOST, rediss://HOST, or @FILE with the URL. "
        f"Default: {BOARD_VARIABLE}; none: without. The password may be in {PASSWORD_VARIABLE}.",
        Panel.BOARD,
    ),
]
QueueUrl = Annotated[
    str | None,
    option(
        "--queue",
        "URL",
        "Send fragments over RabbitMQ or MQTT: amqps://USER@HOST, mqtts://USER@HOST, or @FILE. "
        f"Default: {QUEUE_VARIABLE}; none: without. The password may be in {QUEUE_PASSWORD_VARIABLE}.",
        Panel.BOARD,
    ),
]
NoBoard = Annotated[str | None, option("--board", "URL", "Refused, with the reason.", hidden=True)]
"""The option of a command that cannot use a board; see :func:`refuse_board`."""
Insecure = Annotated[
    bool,
    flag(
        "--insecure",
        "Allow a board or queue without TLS at a public address, where others may read along.",
        Panel.BOARD,
    ),
]
AsJson = Annotated[bool, flag("--json", "Print one JSON object instead of text.", Panel.OUTPUT)]
AsJsonLines = Annotated[bool, flag("--json", "Print JSON lines, one per event.", Panel.OUTPUT)]
Quiet = Annotated[bool, flag(("-q", "--quiet"), "Print only errors and the summary.", Panel.OUTPUT)]


def _show_tracebacks(context: typer.Context, debug: bool) -> bool:
    context.ensure_object(ErrorOptions).show_tracebacks = debug
    return debug


Debug = Annotated[bool, typer.Option("--debug", callback=_show_tracebacks, is_eager=True, help="Show tracebacks.")]

ImportsOfRun = Annotated[
    list[str] | None,
    option("--import", "MODULE", "Import this module, which the run may name; repeatable.", Panel.CODE),
]
AllowEnv = Annotated[
    list[str] | None, option("--allow-env", "ENV", "The run may play this env of a module; repeatable.", Panel.CODE)
]
AllowClass = Annotated[
    list[str] | None, option("--allow-class", "MODULE:CLASS", "The run may name this class; repeatable.", Panel.CODE)
]
AllowStorage = Annotated[
    list[str] | None, option("--allow-storage", "URL", "The run may use this storage; repeatable.", Panel.CODE)
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
