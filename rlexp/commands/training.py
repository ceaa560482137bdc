"""Commands that train: ``run``, ``sweep``, ``resume``, and ``train``, which is ``run`` with RLlib's options too.

Each makes a request of its parameters; :func:`answer` trains for it, and for a program in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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
from rlexp.commands.checking import check_plan
from rlexp.commands.command import Panel
from rlexp.commands.completion import complete_file, complete_run
from rlexp.commands.options import (
    Address,
    AllowUnknown,
    DryRun,
    FilesOrNone,
    Fit,
    Imports,
    Mode,
    Name,
    Out,
    Overrides,
    Overwrite,
    SchedulerName,
    Searched,
    SearcherName,
    Seed,
    Seeds,
    SeedsOfConfigurations,
    TimeBudget,
    Track,
    Wait,
    WorkingDir,
    load_options,
    search_flags,
    seed_flags,
    track_flags,
)
from rlexp.commands.without_file import (
    Algo,
    Env,
    LearningRate,
    Stop,
    checkpoint_flags,
    experiment_flags,
    preset_plan,
    source_of,
)
from rlexp.config.command_line import LoadOptions
from rlexp.config.load import Plan, load_plan
from rlexp.config.plan import only_sweep, refuse_sweeps
from rlexp.terminal.checking import print_how_to_change, print_notices, print_settings
from rlexp.terminal.lines import outlive_readers
from rlexp.tuning.request import Source, TrainingRequest

if TYPE_CHECKING:
    from rlexp.config.yaml.python_values import ExperimentDict
    from rlexp.terminal.displays import QuietDisplay


def run(
    files: FilesOrNone = None,
    algo: Algo = None,
    env: Env = None,
    stop: Stop = None,
    seeds: Seeds = None,
    lr: LearningRate = None,
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
    """Train the experiments in files, or without a file an agent on an env.

    A run is named after its experiment, or after the first file if there are several experiments. Without a file,
    --algo and --env choose settings that fit the env and this machine; the run keeps them as experiment.yaml.
    """
    source = source_of(files, algo, env, "run")
    flags = (*experiment_flags(stop, lr), *seed_flags(seeds), *track_flags(track))
    request = TrainingRequest.of("run", locals(), source=source, flags=flags)
    joining = choose(address, os.environ, wait, working_dir)
    place = chosen_board(board, insecure, queue=queue, joining=joining)
    take_master(keys, place is not None)
    _train_files(replace(request, joining=joining, board=place), dry_run)


def sweep(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A file with one experiment.", show_default=False, autocompletion=complete_file
        ),
    ] = None,
    algo: Algo = None,
    env: Env = None,
    stop: Stop = None,
    searched: Searched = None,
    searcher: Annotated[
        SearcherName | None, typer.Option(help="How configurations are chosen.", rich_help_panel=Panel.SEARCHED)
    ] = None,
    scheduler: Annotated[
        SchedulerName | None, typer.Option(help="Which trials end early.", rich_help_panel=Panel.SEARCHED)
    ] = None,
    num_samples: Annotated[
        int | None, whole("--num-samples", "N", "Configurations to try.", 1, panel=Panel.SEARCHED)
    ] = None,
    num_seeds: SeedsOfConfigurations = None,
    max_concurrent: Annotated[
        int | None, whole("--max-concurrent", "N", "Most trials at a time.", 1, panel=Panel.LIMITS)
    ] = None,
    time_budget_s: TimeBudget = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric to rank by.", rich_help_panel=Panel.SEARCHED)
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="Whether higher (max) or lower (min) is better.", rich_help_panel=Panel.SEARCHED)
    ] = None,
    allow_failures: Annotated[
        int, whole("--allow-failures", "N", "Exit with 0 if at most N trials fail.", 0, panel=Panel.LIMITS)
    ] = 0,
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
    source = source_of([] if file is None else [file], algo, env, "sweep")
    flags = (*experiment_flags(stop), *search_flags(section, searched or ()), *track_flags(track))
    request = TrainingRequest.of("sweep", options, source=source, flags=flags)
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
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Experiment files; the word file may come first.", show_default=False),
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("-f", "--config-file", metavar="FILE", help="An experiment file.")
    ] = None,
    algo: Algo = None,
    env: Env = None,
    config: Annotated[str | None, typer.Option(metavar="JSON", help="Keys of config, as JSON.")] = None,
    stop: Stop = None,
    experiment_name: Annotated[str, typer.Option(metavar="NAME", help="Name of the run without a file.")] = "default",
    seeds: Seeds = None,
    num_samples: Annotated[int | None, whole("--num-samples", "N", "As --seeds.", 1)] = None,
    lr: LearningRate = None,
    checkpoint_freq: Annotated[
        int | None, whole("--checkpoint-freq", "N", "Iterations between checkpoints; 0 for none.", 0)
    ] = None,
    checkpoint_at_end: Annotated[
        bool, typer.Option("--checkpoint-at-end", help="Write a checkpoint at the end (the default).")
    ] = False,
    overrides: Overrides = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "--local-dir", metavar="DIR", envvar="RLEXP_OUT", help="Directory in which runs are created."
        ),
    ] = TrainingRequest.out,
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
    """Train as rlexp run does, with RLlib's options too.

    `train file FILE`, `train -f FILE`, or `train --run DQN --env CartPole-v1`.
    """
    given = (*(files or ()), *(Path(word) for word in (words or ()) if word != "file"))
    source = source_of(given, algo, env, "train", experiment_name)
    checkpoints = checkpoint_flags(checkpoint_freq, checkpoint_at_end)
    flags = (*experiment_flags(stop, lr, config), *seed_flags(seeds or num_samples), *checkpoints, *track_flags(track))
    request = TrainingRequest.of("run", locals(), source=source, flags=flags)
    joining = choose(address, os.environ, wait, working_dir)
    place = chosen_board(board, insecure, queue=queue, joining=joining)
    take_master(keys, place is not None)
    _train_files(replace(request, joining=joining, board=place), dry_run)


def _train_files(request: TrainingRequest, dry_run: bool) -> None:
    if dry_run:
        check_plan(partial(plan_of, request), request.joining, as_json=request.as_json)
        return
    outlive_readers()
    _end(answer(replace(request, command=tuple(sys.argv))))


@dataclass(frozen=True)
class Trained:
    """How a run or sweep ended, and where it is."""

    exit_code: int
    directory: Path | None
    """The directory of the run; None if it was interrupted before it had one."""


def _end(trained: Trained) -> NoReturn:
    raise typer.Exit(trained.exit_code)


def answer(request: TrainingRequest) -> Trained:
    """Train as a command or a program asks; raises the errors that the command shows."""
    with prepared(request.joining, request.debug) as joining:
        request = replace(request, joining=joining)
        if request.kind == "resume":
            return _resume(request)
        return train_plan(plan_of(request), request)


def plan_of(request: TrainingRequest) -> Plan:
    """Return the plan of a request for a run or sweep; raises ConfigError as ``load_plan`` does."""
    reading = reading_of(request)
    if request.source.env is not None:
        return preset_plan(request, reading)
    return load_plan(_sources(request.source), request.overrides, request.seed, reading)


def _sources(source: Source) -> Sequence[Path | ExperimentDict]:
    if source.data is None:
        return source.files
    from rlexp.config.yaml.python_values import ExperimentDict  # with NumPy, whose numbers a dict may have

    return [ExperimentDict(source.data)]


def reading_of(request: TrainingRequest) -> LoadOptions:
    """Return how the experiments of a request are read."""
    is_fitted = request.fit or request.source.env is not None
    options = load_options(request.imports, request.allow_unknown, is_fitted, request.joining)
    source = request.source
    folders = source.folders if source.data is not None or source.folders else None
    return replace(options, is_sweep=request.kind == "sweep", flags=request.flags, module_folders=folders)


def train_plan(plan: Plan, request: TrainingRequest) -> Trained:
    """Run a plan; it is a sweep if the request is one."""
    is_sweep = request.kind == "sweep"
    if is_sweep:
        only_sweep(plan)
    else:
        refuse_sweeps(plan)
    if not request.quiet:
        print_settings(plan)
    print_notices(plan)  # first: they say which keys and envs of the file have other names in the errors below
    check_requirements(plan)
    remember_ones_own(plan)
    if request.joining.address is None:
        # Again in rlexp.tuning, but only after what is slow to import.
        check_fits(plan.everything, Cluster.of(this_machine()))
    from rlexp.tuning.run import run_plan, run_sweep

    with _display(request) as display:
        code = (run_sweep if is_sweep else run_plan)(plan, request, display)
    if not (request.as_json or request.quiet):
        print_how_to_change(display.run_directory, plan)
    return Trained(code, display.run_directory)


def _resume(request: TrainingRequest) -> Trained:
    from rlexp.tuning.resume import resume_run

    trusted = trusted_code(request.imports, request.allow_env, request.allow_class, request.allow_storage)
    changes = (*(f"{flag.key}={flag.text}" for flag in request.flags), *request.overrides)
    with _display(request) as display:
        return Trained(resume_run(replace(request, overrides=changes), display, trusted), request.path)


def _display(request: TrainingRequest) -> QuietDisplay:
    if request.draw is not None:
        from rlexp.terminal.live import notebook_display

        return notebook_display(sys.stdout, request.draw)
    from rlexp.terminal.displays import choose_display

    return choose_display(sys.stdout, sys.stderr, os.environ, json=request.as_json, quiet=request.quiet)
