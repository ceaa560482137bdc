"""The options that several commands share. They load nothing of what experiments are made of: help is for a glance."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlexp.board.messages.address import BOARD_VARIABLE, PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE, QUEUE_VARIABLE
from rlexp.board.messages.credentials import MASTER_VARIABLE, TOKEN_VARIABLE
from rlexp.commands.basic_options import duration, whole
from rlexp.commands.command import OVERRIDE_OPTION, Panel, as_given
from rlexp.commands.completion import complete_agent, complete_env, complete_file, complete_override
from rlexp.schedules import LARGEST_SEED

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
    typer.Option(
        OVERRIDE_OPTION,
        "--override",
        metavar="KEY.PATH=VALUE",
        parser=as_given,
        autocompletion=complete_override,
        help="Override a value in every experiment; repeatable. KEY.PATH=VALUE alone does the same.",
        rich_help_panel=Panel.TRAINED,
    ),
]
Seed = Annotated[int | None, whole("--seed", "N", "Seed for every experiment.", 0, LARGEST_SEED, Panel.TRAINED)]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        envvar="RLEXP_OUT",
        help="Directory in which runs are created.",
        rich_help_panel=Panel.RESULTS,
    ),
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the directory in OUT.", rich_help_panel=Panel.RESULTS)
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace a finished run or sweep of the same name.", rich_help_panel=Panel.RESULTS
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be trained, create nothing.", rich_help_panel=Panel.OUTPUT)
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module that registers environments; repeatable.",
        rich_help_panel=Panel.TRAINED,
    ),
]
AllowUnknown = Annotated[
    bool,
    typer.Option("--allow-unknown", help="Ignore unknown keys, with a notice each.", rich_help_panel=Panel.TRAINED),
]
Fit = Annotated[
    bool,
    typer.Option(
        "--fit",
        help="Reduce workers, replay shards, GPUs and replay to this machine or cluster.",
        rich_help_panel=Panel.MACHINES,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "--ray-address",
        metavar="HOST:PORT",
        help="Train on the Ray cluster with this head (auto: this machine's; local: none). "
        "Default: RLEXP_ADDRESS, then RAY_ADDRESS.",
        rich_help_panel=Panel.MACHINES,
    ),
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Wait so long (90s, 30m, 2h) until the cluster has room.",
        rich_help_panel=Panel.MACHINES,
    ),
]
WorkingDir = Annotated[
    bool,
    typer.Option(
        "--working-dir",
        help="Send the current folder to all nodes of the cluster (at most 100 MB).",
        rich_help_panel=Panel.MACHINES,
    ),
]
SearcherName = StrEnum("SearcherName", ["grid", "random", "optuna"])
SchedulerName = StrEnum("SchedulerName", ["fifo", "asha", "hyperband", "median", "pbt"])
"""The names of SCHEDULERS, which come with the keys of experiments."""
Mode = StrEnum("Mode", ["max", "min"])
Searched = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="KEY=A,B,C",
        help="Search a key over values, lr=1e-3,1e-4, or a sampler, 'lr={loguniform: [1e-5, 1e-2]}'; repeatable.",
        rich_help_panel=Panel.SEARCHED,
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
    duration(
        "--time-budget", "--time-budget-s", sentence="End all trials after 90s, 30m, 2h or 1d.", panel=Panel.LIMITS
    ),
]
Tracking = StrEnum("Tracking", ["wandb", "mlflow", "none"])
"""The names of TRACKERS, and none of them."""
Track = Annotated[
    list[Tracking] | None,
    typer.Option(
        "--track",
        metavar="wandb|mlflow|none",
        help="Record trials with this tracker too, whatever the file says; none: with none. Repeatable.",
        rich_help_panel=Panel.RESULTS,
    ),
]
Algo = Annotated[
    str | None,
    typer.Option(
        "--algo",
        "--run",
        metavar="AGENT",
        help="Train this agent without a file; needs --env.",
        autocompletion=complete_agent,
        rich_help_panel=Panel.TRAINED,
    ),
]
Env = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="ENV",
        help="The env: a Gymnasium id, or module:Class; with settings that fit it.",
        autocompletion=complete_env,
        rich_help_panel=Panel.TRAINED,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="METRIC=VALUE",
        help="When trials stop: reward=475, steps=1e6, time=30m, any metric; repeatable.",
        rich_help_panel=Panel.TRAINED,
    ),
]
LearningRate = Annotated[
    str | None,
    typer.Option("--lr", metavar="RATE", help="Learning rate: -o config.lr=RATE.", rich_help_panel=Panel.TRAINED),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="@FILE",
        help="Accept actors with a join token only: the master key of rlexp board keys. "
        f"Default: what {MASTER_VARIABLE} names.",
        rich_help_panel=Panel.BOARD,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="@FILE",
        help=f"Your join token: tasks of its trainer are played, and no others. Default: what {TOKEN_VARIABLE} names.",
        rich_help_panel=Panel.BOARD,
    ),
]
BoardUrl = Annotated[
    str | None,
    typer.Option(
        "--board",
        metavar="URL",
        help="Let actors join the trial over a board: redis://HOST, rediss://HOST, or @FILE with the URL. "
        f"Default: {BOARD_VARIABLE}; none: without. The password may be in {PASSWORD_VARIABLE}.",
        rich_help_panel=Panel.BOARD,
    ),
]
QueueUrl = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="URL",
        help="Send fragments over RabbitMQ or MQTT: amqps://USER@HOST, mqtts://USER@HOST, or @FILE. "
        f"Default: {QUEUE_VARIABLE}; none: without. The password may be in {QUEUE_PASSWORD_VARIABLE}.",
        rich_help_panel=Panel.BOARD,
    ),
]
NoBoard = Annotated[str | None, typer.Option("--board", metavar="URL", hidden=True, help="Refused, with the reason.")]
"""The option of a command that cannot use a board; see :func:`refuse_board`."""
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow a board or queue without TLS at a public address, where others may read along.",
        rich_help_panel=Panel.BOARD,
    ),
]
