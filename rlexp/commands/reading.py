"""Commands that read the results of runs: ``evaluate``, ``logs``, ``compare``, ``ls``, ``tensorboard``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlexp.commands.completion import complete_run
from rlexp.commands.numbers import MOST, real, whole
from rlexp.commands.output_options import AsJson, Debug
from rlexp.commands.trust import AllowClass, AllowEnv, AllowStorage, ImportsOfRun, trusted_code
from rlexp.errors import Notice
from rlexp.run_results.axis import Axis
from rlexp.seeding import LARGEST_SEED
from rlexp.terminal.evaluations import EvaluationProgress, print_evaluation


def evaluate(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A run, a trial or a checkpoint.", show_default=False, autocompletion=complete_run
        ),
    ],
    episodes: Annotated[
        int | None,
        whole("--episodes", "N", "Number of episodes; default: evaluation_num_episodes of the run, or 20.", 1, 10**9),
    ] = None,
    seed: Annotated[
        int | None, whole("--seed", "N", "Seed of the envs; default: that of the run's evaluation.", 0, LARGEST_SEED)
    ] = None,
    explore: Annotated[
        bool | None,
        typer.Option("--explore/--greedy", help="Explore or act greedily; default: as evaluation_config says."),
    ] = None,
    timeout_s: Annotated[float | None, real("--timeout", "S", "Stop after S seconds.", 0)] = None,
    video: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Record a video of one more episode in DIR; needs rlexp[video].")
    ] = None,
    imports: ImportsOfRun = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    allow_storage: AllowStorage = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Play episodes with a checkpoint and print their returns.

    Of a run or a trial it is the best checkpoint. The episodes are those of the run's own evaluation, as
    evaluation_config says: greedy by default. Modules and classes that you have not trained with have to be allowed.
    """
    from rlexp.runs.checkpoints.kept import find_checkpoint

    trusted = trusted_code(imports, allow_env, allow_class, allow_storage)
    checkpoint = find_checkpoint(path, trusted)
    from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint, film_checkpoint_to

    request = EvaluationRequest(episodes, seed, explore, timeout_s, trusted)
    film = None if video is None else film_checkpoint_to(video, checkpoint, request)
    with EvaluationProgress(sys.stderr) as progress:
        evaluation = evaluate_checkpoint(checkpoint, request, progress.report)
    print_evaluation(evaluation, film, as_json)


def logs(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Event files, or directories that contain some.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="GLOB", help="Only tags (or last parts of tags) that match; repeatable."),
    ] = None,
    at: Annotated[int | None, whole("--at", "STEP", "Only the last point at or before STEP.", -MOST)] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every point: run,tag,step,wall_time,value.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, one per tag, with every point.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also print new points as they are written, until Ctrl-C.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Print TensorBoard event files as tables, CSV or JSON.

    The table has the last and highest value, the slope and a curve of every tag. Event files may be
    from any framework; those of one directory are one run. The slope is that of the last tenth of the
    points (at least ten), per 1000 steps. All points are read, except those that a resumed run replaced.
    """
    from rlexp.terminal.logs import LogOptions, print_logs

    print_logs(paths, LogOptions(tags or (), at, as_csv, as_json, follow))


def compare(
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Runs or trials; NAME=PATH[,PATH...] makes one group of them.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    metric: Annotated[str, typer.Option(metavar="NAME", help="Metric to compare.")] = "episode_reward_mean",
    by: Annotated[Axis, typer.Option(help="Align runs by env steps or by wall time.")] = Axis.STEPS,
    at: Annotated[
        float | None, real("--at", "N", "Compare all trials at N env steps (--by time: seconds), not at their end.", 1)
    ] = None,
    goal: Annotated[float | None, real("--goal", "X", "Also print when the metric reached X.", -MOST)] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report as a single HTML file.")] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the curves as a PNG; needs rlexp[plot].")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs over their seeds, with intervals and curves.

    Trials of a run that differ only in their seeds are one group; each variant of a grid is a group.
    Final scores are means over the last tenth of the steps that all completed trials have. Trials that
    ended earlier or failed are listed below. A sweep keeps the scores and the order of its own ranking.
    """
    from rlexp.run_results.comparison import compare_groups
    from rlexp.terminal.comparisons import export_comparison, print_comparison

    comparison = compare_groups(groups, metric, by, goal, at)
    export_comparison(comparison, html, png)
    print_comparison(comparison, as_json)


def ls(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", envvar="RLEXP_OUT", help="A directory of runs, or one run.", autocompletion=complete_run
        ),
    ] = Path("results"),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List runs, newest first, or the trials of one run.

    RUNNING: a process holds its lock. KILLED: it was running, but its process is gone. DAMAGED: its
    run.json cannot be read. Steps and iterations are sums over all trials.
    """
    from rlexp.run_results.run_listing import found_at
    from rlexp.terminal.lines import print_notice_list
    from rlexp.terminal.listings import print_found

    left_out: list[Notice] = []
    found = found_at(path, left_out.append)
    print_notice_list(left_out, "")
    print_found(found, path, as_json)


def tensorboard(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A run, a trial, or a directory of runs.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    port: Annotated[int | None, whole("--port", "N", "Port; 0 takes any free one.", 0, 65535)] = None,
    host: Annotated[
        str, typer.Option(metavar="H", help="Address to listen at; 0.0.0.0 allows other machines.")
    ] = "127.0.0.1",
    debug: Debug = False,
) -> None:
    """Start TensorBoard on a run, for this machine only.

    Ctrl-C ends it.
    """
    from rlexp.run_results.tensorboard_server import run_tensorboard
    from rlexp.terminal.listings import print_address

    raise typer.Exit(run_tensorboard(path, host, port, announce=print_address))
