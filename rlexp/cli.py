"""The command line: parse, call, print. What is heavy (torch, ray) is imported inside the commands that need it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from rlexp import __version__
from rlexp.config.load import load_plan
from rlexp.errors import RlexpError
from rlexp.machine import check_fits, this_machine
from rlexp.terminal import plan_as_json, print_error, print_evaluation, print_notices, print_plan

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Experiment files.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-o", metavar="KEY.PATH=VALUE", help="Lay a value over every experiment; repeatable."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="The seed of every experiment.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", envvar="RLEXP_OUT", help="Where runs get their folders.")]
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


@app.command()
def check(
    files: Files, overrides: Overrides = None, seed: Seed = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Say what is wrong with experiment files, or which trials they would make. Nothing runs."""
    plan, error = None, None
    try:
        plan = load_plan(files, overrides or (), seed)
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
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors and the summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: one per event.")] = False,
    debug: Debug = False,
) -> None:
    """Train every experiment and variant in the files."""
    if dry_run:
        return check(files, overrides, seed, as_json, debug)
    plan = load_plan(files, overrides or (), seed)
    check_fits(plan.trials, this_machine())
    print_notices(plan)
    from rlexp.tuning.display import choose_display
    from rlexp.tuning.experiment_run import RunOptions, run_plan

    display = choose_display(sys.stdout, sys.stderr, os.environ, json=as_json, quiet=quiet)
    raise typer.Exit(run_plan(plan, RunOptions(out, name, overwrite, debug, sys.argv), display))


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


if __name__ == "__main__":
    main()
