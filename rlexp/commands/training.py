"""Commands that train: ``run``, ``sweep``, ``resume``, and ``train`` with RLlib's options.

The options of RLlib's command line that describe an experiment: as an experiment file, or refused beside one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from rlexp.board.messages.address import BoardAddress
from rlexp.cluster.quick_start.fork_server import prepared
from rlexp.cluster.room.fit import check_fits
from rlexp.cluster.room.machine import Cluster, check_requirements, this_machine
from rlexp.cluster.session import OWN, Joining, choose
from rlexp.commands.basic_options import AsJsonLines, Debug, Quiet, whole
from rlexp.commands.board_keys import (
    BoardUrl,
    Insecure,
    MasterOption,
    NoBoard,
    QueueUrl,
    chosen_board,
    refuse_board,
    take_master,
)
from rlexp.commands.checking import check_files
from rlexp.commands.completion import complete_file, complete_run
from rlexp.commands.options import (
    Address,
    AllowUnknown,
    DryRun,
    Files,
    Fit,
    Imports,
    Mode,
    Name,
    NumSeeds,
    Out,
    Overrides,
    Overwrite,
    SchedulerName,
    Searched,
    SearcherName,
    Seed,
    TimeBudget,
    Track,
    Wait,
    WorkingDir,
    load_options,
    search_flags,
    track_flags,
)
from rlexp.commands.trust import AllowClass, AllowEnv, AllowStorage, ImportsOfRun, remember_ones_own, trusted_code
from rlexp.config.command_line import LoadOptions, experiment_text, option_at
from rlexp.config.load import Plan, load_plan
from rlexp.config.plan import only_sweep, refuse_sweeps
from rlexp.errors import ConfigError, UsageError
from rlexp.terminal.checking import print_notices
from rlexp.terminal.lines import outlive_readers

_OF_AN_EXPERIMENT: Final = {
    "agent": "rlexp run FILE -o run=APEX overrides a value in the file",
    "env": "rlexp run FILE -o env=CartPole-v1 overrides a value in the file",
    "config": "rlexp run FILE -o config.lr=0.001 overrides a value in the file",
    "stop": "rlexp run FILE -o stop.timesteps_total=10000 overrides a value in the file",
    "name": "rlexp run FILE --name NAME names the run's directory",
    "num_samples": "rlexp run FILE -o num_samples=3 overrides a value in the file",
    "checkpoint_freq": "rlexp run FILE -o checkpoint_freq=10 overrides a value in the file",
    "checkpoint_at_end": "rlexp run FILE -o checkpoint_at_end=true overrides a value in the file",
}
"""Parameters of ``train`` that describe an experiment, and what to do instead where a file describes it."""


def refuse_beside_files(context: typer.Context) -> None:
    """Raise UsageError where options were given that describe an experiment: a file describes its own."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        # By its name: some versions of typer carry a copy of click with its own enumeration of sources.
        if name in _OF_AN_EXPERIMENT and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} cannot be combined with a file", _OF_AN_EXPERIMENT[name])


def plan_of_text(text: str, path: Path, options: LoadOptions) -> Plan:
    """Return the plan of a text that options of the command line made, written to ``path``; messages name the options.

    Raises ConfigError as ``load_plan`` does.
    """
    path.write_text(text, encoding="utf-8")

    def option(where: str) -> str:
        line = where.removeprefix(f"{path}:").partition(":")[0]
        return option_at(text, int(line)) if line.isdecimal() else where

    try:
        plan = load_plan([path], options=options)
    except ConfigError as error:
        raise ConfigError([replace(problem, where=option(problem.where)) for problem in error.problems]) from None
    return replace(plan, notices=tuple(replace(notice, where=option(notice.where)) for notice in plan.notices))


def run(
    files: Files,
    overrides: Overrides = None,
    out: Out = Path("results"),
    name: Name = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    seed: Seed = None,
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    address: Address = None,
    wait: Wait = None,
    working_dir: WorkingDir = False,
    board: BoardUrl = None,
    keys: MasterOption = None,
    queue: QueueUrl = None,
    insecure: Insecure = False,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Train every experiment and variant in the files.

    A run is named after its experiment, or after the first file where there are several experiments.
    """
    joining = choose(address, os.environ, wait, working_dir)
    address_of_board = chosen_board(board, insecure, queue=queue, joining=joining)
    take_master(keys, address_of_board is not None)
    options = load_options(imports, allow_unknown, fit, flags=track_flags(track), joining=joining)
    if dry_run:
        return check_files(files, overrides or (), seed, options, joining, as_json=as_json)
    outlive_readers()
    with prepared(joining, debug) as joining:
        plan = load_plan(files, overrides or (), seed, options)
        return _train(plan, RunFlags(out, name, overwrite, quiet, as_json, debug, joining, address_of_board))


def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="An experiment file with one experiment.", autocompletion=complete_file),
    ],
    searched: Searched = None,
    searcher: Annotated[SearcherName | None, typer.Option(help="How configurations are chosen.")] = None,
    scheduler: Annotated[SchedulerName | None, typer.Option(help="Which trials end early.")] = None,
    num_samples: Annotated[int | None, whole("--num-samples", "N", "Configurations to try.", 1)] = None,
    num_seeds: NumSeeds = None,
    max_concurrent: Annotated[int | None, whole("--max-concurrent", "N", "Most trials at a time.", 1)] = None,
    time_budget_s: TimeBudget = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="Metric to rank by.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Whether higher (max) or lower (min) is better.")] = None,
    allow_failures: Annotated[int, whole("--allow-failures", "N", "Exit with 0 if at most N trials fail.", 0)] = 0,
    overrides: Overrides = None,
    out: Out = Path("results"),
    name: Name = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    seed: Seed = None,
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    address: Address = None,
    wait: Wait = None,
    working_dir: WorkingDir = False,
    board: NoBoard = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Search hyperparameters over the samplers and grids of a file.

    The file's search section says how; options override it. A file without the section is searched
    over its grids, or at random where it has samplers. At the end there are a ranking, trials.csv,
    and best.yaml for rlexp run.
    """
    section: dict[str, Any] = {"searcher": searcher, "scheduler": scheduler, "metric": metric, "mode": mode}
    section |= {"num_samples": num_samples, "num_seeds": num_seeds}
    section |= {"max_concurrent": max_concurrent, "time_budget_s": time_budget_s}
    refuse_board(board, "a sweep has many trials, and a board's task is one")
    joining = choose(address, os.environ, wait, working_dir)
    flags = (*search_flags(section, searched or ()), *track_flags(track))
    options = load_options(imports, allow_unknown, fit, is_sweep=True, flags=flags, joining=joining)
    if dry_run:
        return check_files([file], overrides or (), seed, options, joining, as_json=as_json)
    outlive_readers()
    with prepared(joining, debug) as joining:
        plan = load_plan([file], overrides or (), seed, options)
        only_sweep(plan)
        return _train(plan, RunFlags(out, name, overwrite, quiet, as_json, debug, joining), allow_failures)


def resume(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run or sweep.", show_default=False, autocompletion=complete_run)
    ],
    overrides: Overrides = None,
    address: Address = None,
    wait: Wait = None,
    working_dir: WorkingDir = False,
    board: BoardUrl = None,
    keys: MasterOption = None,
    queue: QueueUrl = None,
    insecure: Insecure = False,
    track: Track = None,
    imports: ImportsOfRun = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    allow_storage: AllowStorage = None,
    quiet: Quiet = False,
    as_json: AsJsonLines = False,
    debug: Debug = False,
) -> None:
    """Resume a stopped or killed run or sweep.

    Each trial continues from its newest checkpoint. -o stop.timesteps_total=2e6 sets a later stop,
    -o search.num_samples=30 makes a sweep larger. Keys of resources and reports may change, others may not. Modules,
    classes and storages that you have not trained with have to be allowed.
    """
    outlive_readers()
    joining = choose(address, os.environ, wait, working_dir)
    address_of_board = chosen_board(board, insecure, queue=queue, joining=joining)
    take_master(keys, address_of_board is not None)
    changes = [*(f"{flag.key}={flag.text}" for flag in track_flags(track)), *(overrides or ())]
    trusted = trusted_code(imports, allow_env, allow_class, allow_storage)
    from rlexp.terminal.displays import choose_display
    from rlexp.tuning.resume import resume_run

    with (
        prepared(joining, debug) as joining,
        choose_display(sys.stdout, sys.stderr, os.environ, json=as_json, quiet=quiet) as display,
    ):
        code = resume_run(path, changes, display, debug, joining, address_of_board, trusted)
    raise typer.Exit(code)


def train(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Experiment files; the word file may come first.", show_default=False),
    ] = None,
    files: Annotated[list[Path] | None, typer.Option("-f", "--config-file", help="An experiment file.")] = None,
    agent: Annotated[str | None, typer.Option("--run", "--algo", help="Agent, without a file.")] = None,
    env: Annotated[str | None, typer.Option(help="Environment, without a file.")] = None,
    config: Annotated[str, typer.Option(metavar="JSON", help="Keys of config, as JSON.")] = "{}",
    stop: Annotated[str, typer.Option(metavar="JSON", help="When trials stop, as JSON.")] = "{}",
    name: Annotated[str, typer.Option("--experiment-name", help="Name of the experiment.")] = "default",
    num_samples: Annotated[int, whole("--num-samples", "N", "Number of repeats.", 1)] = 1,
    checkpoint_freq: Annotated[
        int, whole("--checkpoint-freq", "N", "Iterations between checkpoints; 0 for none.", 0)
    ] = 0,
    checkpoint_at_end: Annotated[
        bool, typer.Option("--checkpoint-at-end", help="Write a checkpoint at the end (the default).")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "--local-dir", metavar="DIR", envvar="RLEXP_OUT", help="Directory in which runs are created."
        ),
    ] = Path("results"),
    imports: Imports = None,
    fit: Fit = False,
    address: Address = None,
    wait: Wait = None,
    working_dir: WorkingDir = False,
    track: Track = None,
    debug: Debug = False,
) -> None:
    """Train with the options of RLlib's command line.

    `train file FILE`, `train -f FILE`, or `train --run DQN --env CartPole-v1`.
    """
    outlive_readers()
    joining = choose(address, os.environ, wait, working_dir)
    given = [*(files or []), *(Path(word) for word in (words or []) if word != "file")]
    options = load_options(imports, False, fit, flags=track_flags(track), joining=joining)
    if given:
        refuse_beside_files(context)
        with prepared(joining, debug) as joining:
            return _train(load_plan(given, options=options), RunFlags(out, debug=debug, joining=joining))
    keys = {"checkpoint_freq": checkpoint_freq, "checkpoint_at_end": checkpoint_at_end}
    text = experiment_text(name, agent, env, config, stop, num_samples=num_samples, **keys)
    with TemporaryDirectory() as folder, prepared(joining, debug) as joining:
        plan = plan_of_text(text, Path(folder) / "experiment.yaml", options)
        return _train(plan, RunFlags(out, debug=debug, joining=joining))


@dataclass(frozen=True)
class RunFlags:
    """The options of a run, apart from its experiments."""

    out: Path
    name: str | None = None
    overwrite: bool = False
    quiet: bool = False
    as_json: bool = False
    debug: bool = False
    joining: Joining = OWN
    board: BoardAddress | None = None
    command: Sequence[str] | None = None
    """What the run's record says started it; None: the words of this process's command line."""


@dataclass(frozen=True)
class Trained:
    """How a run or sweep ended, and where it is."""

    exit_code: int
    directory: Path | None
    """None where it was interrupted before it had one."""


def _train(plan: Plan, flags: RunFlags, allow_failures: int | None = None) -> None:
    raise typer.Exit(train_plan(plan, flags, allow_failures).exit_code)


def train_plan(plan: Plan, flags: RunFlags, allow_failures: int | None = None) -> Trained:
    """Run a plan; a sweep where ``allow_failures`` says how many of its trials may fail."""
    if allow_failures is None:
        refuse_sweeps(plan)
    print_notices(plan)  # first: they say which keys and envs of the file have other names in the errors below
    check_requirements(plan)
    remember_ones_own(plan)
    if flags.joining.address is None:
        # Again in rlexp.tuning, but only after what is slow to import.
        check_fits(plan.everything, Cluster.of(this_machine()))
    from rlexp.terminal.displays import choose_display
    from rlexp.tuning.run import RunOptions, run_plan, run_sweep

    command = sys.argv if flags.command is None else flags.command
    options = RunOptions(flags.out, flags.name, flags.overwrite, flags.debug, command, flags.joining, flags.board)
    with choose_display(sys.stdout, sys.stderr, os.environ, json=flags.as_json, quiet=flags.quiet) as display:
        if allow_failures is None:
            code = run_plan(plan, options, display)
        else:
            code = run_sweep(plan, options, display, allow_failures)
    return Trained(code, display.run_directory)
