"""The command line: parse, call, print. What is heavy (torch, ray) is imported inside the commands that need it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rlexp import __version__
from rlexp.config.command_line import experiment_text
from rlexp.config.json_schema import experiment_schema
from rlexp.config.load import LoadOptions, converted_file, load_plan
from rlexp.config.plan import refuse_untrainable
from rlexp.errors import RlexpError
from rlexp.machine import check_fits, fitted, this_machine
from rlexp.results.axis import Axis
from rlexp.terminal import (
    plan_as_json,
    print_condition,
    print_error,
    print_evaluation,
    print_explanation,
    print_notices,
    print_plan,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Experiment files.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-o", metavar="KEY.PATH=VALUE", help="Lay a value over every experiment; repeatable."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="The seed of every experiment.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", envvar="RLEXP_OUT", help="Where runs get their folders.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines: one per event.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors and the summary.")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import a module that registers environments; repeatable."),
]
AllowUnknown = Annotated[bool, typer.Option("--allow-unknown", help="Leave unknown keys out instead of refusing them.")]
Fit = Annotated[bool, typer.Option("--fit", help="Scale workers, shards, GPUs and replay to this machine.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def main() -> None:
    """Run a command; what its user can mend is printed as ``error:`` and ``hint:`` lines and sets the exit code."""
    try:
        app()
    except RlexpError as error:
        if "--debug" in sys.argv:
            traceback.print_exception(error)
        print_error(error)
        sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlexp {__version__}")
        raise typer.Exit


@app.callback()
def rlexp(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement-learning experiments in YAML: Ape-X and DQN."""


def _load_options(imports: list[str] | None, allow_unknown: bool, fit: bool) -> LoadOptions:
    machine = this_machine() if fit else None
    return LoadOptions(tuple(imports or ()), allow_unknown, partial(fitted, machine=machine) if machine else None)


@app.command()
def check(
    files: Files,
    overrides: Overrides = None,
    seed: Seed = None,
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what is wrong with experiment files, or which trials they would make. Nothing runs."""
    plan, error = None, None
    try:
        plan = load_plan(files, overrides or (), seed, _load_options(imports, allow_unknown, fit))
        check_fits(plan.trials, this_machine())
    except RlexpError as caught:
        error = caught
    if as_json:
        print(json.dumps(plan_as_json(plan, error)))
    elif plan:
        print_notices(plan)
        print_plan(plan)
    if error:
        raise error


@app.command()
def run(
    files: Files,
    overrides: Overrides = None,
    out: Out = Path("results"),
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The run's folder in OUT.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished run of that name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the trials and create nothing.")] = False,
    seed: Seed = None,
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    quiet: Quiet = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Train every experiment and variant in the files."""
    if dry_run:
        return check(files, overrides, seed, imports, allow_unknown, fit, as_json, debug)
    plan = load_plan(files, overrides or (), seed, _load_options(imports, allow_unknown, fit))
    refuse_untrainable(plan)
    check_fits(plan.trials, this_machine())  # run_plan checks too, but only after what is slow to import
    print_notices(plan)
    from rlexp.tuning.display import choose_display
    from rlexp.tuning.experiment_run import RunOptions, run_plan

    display = choose_display(sys.stdout, sys.stderr, os.environ, json=as_json, quiet=quiet)
    raise typer.Exit(run_plan(plan, RunOptions(out, name, overwrite, debug, sys.argv), display))


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run that was stopped.", show_default=False)],
    quiet: Quiet = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Go on with the trials of a run that have not reached their stop, each from its newest checkpoint."""
    from rlexp.tuning.display import choose_display
    from rlexp.tuning.experiment_run import resume_run

    display = choose_display(sys.stdout, sys.stderr, os.environ, json=as_json, quiet=quiet)
    raise typer.Exit(resume_run(path, display, debug))


@app.command()
def evaluate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A run, a trial or a checkpoint.", show_default=False)],
    episodes: Annotated[int, typer.Option(min=1, metavar="N", help="Episodes to play.")] = 20,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the envs.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Play a checkpoint greedily: the one given, or the best of a run or trial."""
    from rlexp.tuning.find_checkpoint import find_checkpoint

    checkpoint = find_checkpoint(path)
    from rlexp.agents.evaluation import evaluate_checkpoint

    print_evaluation(evaluate_checkpoint(checkpoint, episodes, seed), as_json)


@app.command()
def logs(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Event files, or directories with some below.", show_default=False),
    ],
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="GLOB", help="Only tags, or ends of tags, like this; repeatable."),
    ] = None,
    at: Annotated[
        int | None, typer.Option(metavar="STEP", help="Only the point with the last step up to STEP.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every point: run,tag,step,wall_time,value.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: one per tag, with every point.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is written, until Ctrl-C.")] = False,
    debug: Debug = False,
) -> None:
    """Read TensorBoard event files: last and highest value, slope and curve of every tag.

    Whoever wrote them; the files of a directory are one run. The slope is that of the last tenth of
    the points, ten at least, per 1000 steps. No point is left out but those that a resumed run took back.
    """
    from rlexp.terminal.logs import LogOptions, print_logs

    print_logs(paths, LogOptions(tags or (), at, as_csv, as_json, follow))


@app.command()
def compare(
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Runs, trials, or NAME=PATH[,PATH...]: all of them one group.", show_default=False
        ),
    ],
    metric: Annotated[str, typer.Option(metavar="NAME", help="What is compared.")] = "episode_reward_mean",
    by: Annotated[Axis, typer.Option(help="What runs are aligned by: env steps, or wall time.")] = Axis.STEPS,
    goal: Annotated[float | None, typer.Option(metavar="X", help="Also say when the metric reached X.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report that needs no other file.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the curves; needs rlexp[plot].")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs over their seeds: curves, interquartile means with 95 % intervals, and who is better.

    The trials of a run that differ in their seeds only are one group, each variant of a grid is its
    own. Final scores are taken where the shortest trial ends, over the last tenth.
    """
    from rlexp.results.comparison import compare_groups
    from rlexp.terminal.comparisons import export_comparison, print_comparison

    comparison = compare_groups(groups, metric, by, goal)
    export_comparison(comparison, html, png)
    print_comparison(comparison, as_json)


@app.command()
def ls(
    path: Annotated[Path, typer.Argument(metavar="PATH", envvar="RLEXP_OUT", help="Runs, or one.")] = Path("results"),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the runs below PATH, newest first, or the trials of one run.

    RUNNING holds its lock; KILLED says that it runs, but its process is gone; the run.json of
    DAMAGED cannot be read. Steps and iterations are those of all trials together.
    """
    from rlexp.results.found_runs import found_at
    from rlexp.terminal.listings import print_found

    print_found(found_at(path), path, as_json)


@app.command()
def tensorboard(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A run, a trial, or a folder of runs.", show_default=False)
    ],
    port: Annotated[int | None, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes any.")] = None,
    host: Annotated[str, typer.Option(metavar="H", help="Address to listen at; 0.0.0.0 lets others in.")] = "127.0.0.1",
    debug: Debug = False,
) -> None:
    """Start TensorBoard on a run, for this machine alone, until Ctrl-C."""
    from rlexp.results.tensorboard_server import run_tensorboard

    raise typer.Exit(run_tensorboard(path, host, port, announce=partial(print, flush=True)))


@app.command()
def train(
    words: Annotated[list[str] | None, typer.Argument(metavar="[file FILE...]", show_default=False)] = None,
    files: Annotated[list[Path] | None, typer.Option("-f", "--config-file", help="An experiment file.")] = None,
    agent: Annotated[str | None, typer.Option("--run", "--algo", help="The agent, where there is no file.")] = None,
    env: Annotated[str | None, typer.Option(help="Its environment.")] = None,
    config: Annotated[str, typer.Option(metavar="JSON", help="Its keys.")] = "{}",
    stop: Annotated[str, typer.Option(metavar="JSON", help="When it stops.")] = "{}",
    name: Annotated[str, typer.Option("--experiment-name", help="Its name.")] = "default",
    num_samples: Annotated[int, typer.Option(help="How often it runs.")] = 1,
    checkpoint_freq: Annotated[int, typer.Option(help="Iterations between checkpoints.")] = 0,
    checkpoint_at_end: Annotated[bool, typer.Option("--checkpoint-at-end")] = False,
    out: Annotated[Path, typer.Option("--out", "--local-dir", metavar="DIR", envvar="RLEXP_OUT")] = Path("results"),
    imports: Imports = None,
    fit: Fit = False,
    debug: Debug = False,
) -> None:
    """Train as RLlib's command line did: `train file FILE`, `train -f FILE`, or `train --run DQN --env CartPole-v1`."""
    given = [*(files or []), *(Path(word) for word in (words or []) if word != "file")]
    with TemporaryDirectory() as folder:
        if not given:
            keys = {"checkpoint_freq": checkpoint_freq, "checkpoint_at_end": checkpoint_at_end}
            text = experiment_text(name, agent, env, config, stop, num_samples=num_samples, **keys)
            given = [Path(folder) / "experiment.yaml"]
            given[0].write_text(text, encoding="utf-8")
        run(given, out=out, imports=imports, fit=fit, debug=debug)


@app.command()
def explain(
    key: Annotated[str | None, typer.Argument(metavar="[KEY or AGENT]", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Say what a key does: its values, its default in each agent, its other spellings. Without a key: all of them."""
    print_explanation(key)


@app.command()
def schema() -> None:
    """Print the JSON Schema of experiment files, for editors."""
    print(json.dumps(experiment_schema(), indent=1))


@app.command()
def convert(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment file of any age.", show_default=False)],
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    debug: Debug = False,
) -> None:
    """Print a file in today's spelling, with a comment at each change."""
    print(converted_file(path, _load_options(imports, allow_unknown, fit=False)), end="")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Print the versions installed, and this machine's CPUs, GPUs and memory."""
    print_condition(this_machine(), as_json)


if __name__ == "__main__":
    main()
