"""``rlexp sweep``: hyperparameter search over an experiment file."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rlexp.commands.explaining import check_files
from rlexp.commands.options import (
    AllowUnknown,
    AsJsonLines,
    Debug,
    DryRun,
    Fit,
    Imports,
    Name,
    Out,
    Overrides,
    Overwrite,
    Quiet,
    Seed,
    load_options,
)
from rlexp.config.command_line import Flag
from rlexp.config.load import load_plan
from rlexp.config.plan import only_sweep, refuse_untrainable
from rlexp.errors import UsageError
from rlexp.machine import check_fits, check_requirements, this_machine
from rlexp.sessions.ray_address import refuse_cluster
from rlexp.terminal import print_notices
from rlexp.terminal.output_streams import outlive_readers

SearcherName = StrEnum("SearcherName", ["grid", "random", "optuna"])
SchedulerName = StrEnum("SchedulerName", ["fifo", "asha", "median", "pbt"])
Mode = StrEnum("Mode", ["max", "min"])


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment file with one experiment.")],
    searched: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=A,B,C", help="Search a key over values or a sampler; repeatable."),
    ] = None,
    searcher: Annotated[SearcherName | None, typer.Option(help="How configurations are chosen.")] = None,
    scheduler: Annotated[SchedulerName | None, typer.Option(help="Which trials end early.")] = None,
    num_samples: Annotated[int | None, typer.Option(metavar="N", help="Configurations to try.")] = None,
    num_seeds: Annotated[
        int | None, typer.Option(metavar="K", help="Trials of each configuration, with different seeds.")
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(metavar="N", help="Most trials at a time.")] = None,
    time_budget_s: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds after which all trials end.")
    ] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="Metric to rank by.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Whether higher (max) or lower (min) is better.")] = None,
    allow_failures: Annotated[int, typer.Option(min=0, metavar="N", help="Exit with 0 if at most N trials fail.")] = 0,
    overrides: Overrides = None,
    out: Out = Path("results"),
    name: Name = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    seed: Seed = None,
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    quiet: Quiet = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Search hyperparameters over the samplers and grids of a file.

    The file's search section says how; options override it. A file without the section is searched
    over its grids, or at random where it has samplers. At the end there are a ranking, trials.csv,
    and best.yaml for rlexp run.
    """
    given: dict[str, Any] = {
        "searcher": searcher,
        "scheduler": scheduler,
        "num_samples": num_samples,
        "num_seeds": num_seeds,
        "max_concurrent": max_concurrent,
        "time_budget_s": time_budget_s,
        "metric": metric,
        "mode": mode,
    }
    for text in searched or ():
        if "=" not in text:
            raise UsageError(f"--sweep {text} names no values", "write --sweep lr=1e-3,1e-4")
    options = load_options(imports, allow_unknown, fit, is_sweep=True, flags=_flags(given, searched or ()))
    if dry_run:
        return check_files([file], overrides or (), seed, options, as_json=as_json)
    outlive_readers()
    refuse_cluster(os.environ)
    plan = load_plan([file], overrides or (), seed, options)
    refuse_untrainable(plan)
    only_sweep(plan)
    print_notices(plan)  # first: they say which keys and envs of the file have other names in the errors below
    check_requirements(plan)
    check_fits(plan.everything, this_machine())  # run_sweep checks too, but only after what is slow to import
    from rlexp.display import choose_display
    from rlexp.tuning.run import RunOptions
    from rlexp.tuning.sweep_run import run_sweep

    with choose_display(sys.stdout, sys.stderr, os.environ, json=as_json, quiet=quiet) as display:
        code = run_sweep(plan, RunOptions(out, name, overwrite, debug, sys.argv), display, allow_failures)
    raise typer.Exit(code)


def _flags(given: dict[str, Any], searched: list[str] | tuple[str, ...]) -> tuple[Flag, ...]:
    """Return what the options say as values of keys, for the file's reader to lay over it."""
    section = (
        Flag(f"--{key.replace('_', '-')} {value}", f"search.{key}", str(value))
        for key, value in given.items()
        if value is not None
    )
    values = ((text, *text.partition("=")[::2]) for text in searched)
    return (*section, *(Flag(f"--sweep {text}", key, _searched(value)) for text, key, value in values))


def _searched(text: str) -> str:
    """Return a list of values as a grid; a sampler, ``{loguniform: [1e-4, 1e-2]}``, as it is."""
    return text if text.lstrip().startswith("{") else f"{{grid_search: [{text}]}}"
