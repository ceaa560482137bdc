"""Commands that train: ``run``, ``sweep``, ``resume``, and ``train`` with RLlib's options.

Each makes a request of its parameters; :func:`answer` trains for it, and for a program in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from rlexp.cluster.quick_start.fork_server import prepared
from rlexp.cluster.room.fit import check_fits
from rlexp.cluster.room.machine import Cluster, check_requirements, this_machine
from rlexp.cluster.session import choose
from rlexp.commands.basic_options import (
    AllowClass,
    AllowEnv,
    AllowStorage,
    AsJsonLines,
    Debug,
    ImportsOfRun,
    Quiet,
    remember_ones_own,
    trusted_code,
    whole,
)
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
from rlexp.config.command_line import LoadOptions, experiment_text, option_at
from rlexp.config.load import Plan, load_plan
from rlexp.config.plan import only_sweep, refuse_sweeps
from rlexp.errors import ConfigError, UsageError
from rlexp.terminal.checking import print_notices
from rlexp.terminal.lines import outlive_readers
from rlexp.tuning.request import Source, TrainingRequest

if TYPE_CHECKING:
    from rlexp.config.yaml.python_values import ExperimentDict
    from rlexp.terminal.displays import QuietDisplay


def run(
    files: Files,
    overrides: Overrides = None,
    out: Out = TrainingRequest.out,
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
    request = TrainingRequest.of("run", locals(), source=Source(tuple(files)), flags=track_flags(track))
    joining = choose(address, os.environ, wait, working_dir)
    place = chosen_board(board, insecure, queue=queue, joining=joining)
    take_master(keys, place is not None)
    _train_files(replace(request, joining=joining, board=place), dry_run)


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
    out: Out = TrainingRequest.out,
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
    options = locals()
    section: dict[str, Any] = {"searcher": searcher, "scheduler": scheduler, "metric": metric, "mode": mode}
    section |= {"num_samples": num_samples, "num_seeds": num_seeds}
    section |= {"max_concurrent": max_concurrent, "time_budget_s": time_budget_s}
    refuse_board(board, "a sweep has many trials, and a board's task is one")
    flags = (*search_flags(section, searched or ()), *track_flags(track))
    request = TrainingRequest.of("sweep", options, source=Source((file,)), flags=flags)
    _train_files(replace(request, joining=choose(address, os.environ, wait, working_dir)), dry_run)


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
    request = TrainingRequest.of("resume", locals(), flags=track_flags(track))
    outlive_readers()
    joining = choose(address, os.environ, wait, working_dir)
    place = chosen_board(board, insecure, queue=queue, joining=joining)
    take_master(keys, place is not None)
    _end(answer(replace(request, joining=joining, board=place)))


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
    ] = TrainingRequest.out,
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
    given = (*(files or ()), *(Path(word) for word in (words or ()) if word != "file"))
    options = {"out": out, "imports": imports, "fit": fit, "debug": debug, "command": sys.argv}
    request = TrainingRequest.of("run", options, source=Source(given), flags=track_flags(track))
    request = replace(request, joining=choose(address, os.environ, wait, working_dir))
    if given:
        refuse_beside_files(context)
        _end(answer(request))
    keys = {"checkpoint_freq": checkpoint_freq, "checkpoint_at_end": checkpoint_at_end}
    text = experiment_text(name, agent, env, config, stop, num_samples=num_samples, **keys)
    with TemporaryDirectory() as folder, prepared(request.joining, debug) as joining:
        request = replace(request, joining=joining)
        plan = plan_of_text(text, Path(folder) / "experiment.yaml", reading_of(request))
        _end(train_plan(plan, request))


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


def _train_files(request: TrainingRequest, dry_run: bool) -> None:
    if dry_run:
        given = (request.source.files, request.overrides, request.seed, reading_of(request), request.joining)
        check_files(*given, as_json=request.as_json)
        return
    outlive_readers()
    _end(answer(replace(request, command=tuple(sys.argv))))


@dataclass(frozen=True)
class Trained:
    """How a run or sweep ended, and where it is."""

    exit_code: int
    directory: Path | None
    """None where it was interrupted before it had one."""


def _end(trained: Trained) -> NoReturn:
    raise typer.Exit(trained.exit_code)


def answer(request: TrainingRequest) -> Trained:
    """Train as a command or a program asks; raises what the command shows as errors."""
    with prepared(request.joining, request.debug) as joining:
        request = replace(request, joining=joining)
        if request.kind == "resume":
            return _resume(request)
        sources = _sources(request.source)
        return train_plan(load_plan(sources, request.overrides, request.seed, reading_of(request)), request)


def _sources(source: Source) -> Sequence[Path | ExperimentDict]:
    if source.data is None:
        return source.files
    from rlexp.config.yaml.python_values import ExperimentDict  # with NumPy, whose numbers a dict may have

    return [ExperimentDict(source.data)]


def reading_of(request: TrainingRequest) -> LoadOptions:
    """Return how the experiments of a request are read."""
    options = load_options(request.imports, request.allow_unknown, request.fit, request.joining)
    folders = None if request.source.data is None else request.source.folders
    return replace(options, is_sweep=request.kind == "sweep", flags=request.flags, module_folders=folders)


def train_plan(plan: Plan, request: TrainingRequest) -> Trained:
    """Run a plan, which is a sweep where the request is one."""
    is_sweep = request.kind == "sweep"
    if is_sweep:
        only_sweep(plan)
    else:
        refuse_sweeps(plan)
    print_notices(plan)  # first: they say which keys and envs of the file have other names in the errors below
    check_requirements(plan)
    remember_ones_own(plan)
    if request.joining.address is None:
        # Again in rlexp.tuning, but only after what is slow to import.
        check_fits(plan.everything, Cluster.of(this_machine()))
    from rlexp.tuning.run import run_plan, run_sweep

    with _display(request) as display:
        code = (run_sweep if is_sweep else run_plan)(plan, request, display)
    return Trained(code, display.run_directory)


def _resume(request: TrainingRequest) -> Trained:
    from rlexp.tuning.resume import resume_run

    trusted = trusted_code(request.imports, request.allow_env, request.allow_class, request.allow_storage)
    changes = (*(f"{flag.key}={flag.text}" for flag in request.flags), *request.overrides)
    with _display(request) as display:
        return Trained(resume_run(replace(request, overrides=changes), display, trusted), request.path)


def _display(request: TrainingRequest) -> QuietDisplay:
    from rlexp.terminal.displays import choose_display

    return choose_display(sys.stdout, sys.stderr, os.environ, json=request.as_json, quiet=request.quiet)
