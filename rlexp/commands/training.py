"""Commands that train: ``run``, ``sweep``, ``resume``, and ``train``, which is ``run`` with RLlib's options too.

Each declares its options, which is all that help and completion load, and makes a request of them that
``commands/answers.py`` answers. Below are those that check and train nothing: ``check`` and ``convert`` for files,
``doctor`` for a machine or a cluster.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rlexp.commands.command import DEFAULT_OUT, Panel, flag, option, whole
from rlexp.commands.completion import complete_file, complete_run
from rlexp.commands.options import (
    Address,
    Algo,
    AllowClass,
    AllowEnv,
    AllowStorage,
    AllowUnknown,
    AsJson,
    AsJsonLines,
    BoardUrl,
    Debug,
    DryRun,
    Env,
    Files,
    FilesOrNone,
    Fit,
    Imports,
    ImportsOfRun,
    Insecure,
    LearningRate,
    MasterOption,
    Mode,
    Name,
    Names,
    NoBoard,
    Out,
    Overrides,
    Overwrite,
    QueueUrl,
    Quiet,
    SchedulerName,
    Searched,
    SearcherName,
    Seed,
    Seeds,
    SeedsOfConfigurations,
    Stop,
    TimeBudget,
    Track,
    Wait,
    WorkingDir,
)
from rlexp.errors import UsageError


def run(
    files: FilesOrNone = None,
    algo: Algo = None,
    env: Env = None,
    stop: Stop = None,
    seeds: Seeds = None,
    lr: LearningRate = None,
    overrides: Overrides = None,
    out: Out = DEFAULT_OUT,
    name: Name = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    seed: Seed = None,
    imports: Imports = None,
    names: Names = None,
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
    options = locals()
    from rlexp.commands import answers, requests

    source = requests.source_of(files, algo, env, "run")
    flags = (*requests.experiment_flags(stop, lr), *requests.seed_flags(seeds))
    answers.train(requests.training_request("run", options, source, flags), dry_run)


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
    out: Out = DEFAULT_OUT,
    name: Name = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    seed: Seed = None,
    imports: Imports = None,
    names: Names = None,
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
    from rlexp.commands import answers, requests

    section: dict[str, Any] = {"searcher": searcher, "scheduler": scheduler, "metric": metric, "mode": mode}
    section |= {"num_samples": num_samples, "num_seeds": num_seeds}
    section |= {"max_concurrent": max_concurrent, "time_budget_s": time_budget_s}
    source = requests.source_of([] if file is None else [file], algo, env, "sweep")
    flags = (*requests.experiment_flags(stop), *requests.search_flags(section, searched or ()))
    answers.train(requests.training_request("sweep", options, source, flags), dry_run)


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
    options = locals()
    from rlexp.commands import answers, requests

    answers.train(requests.training_request("resume", options))


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Experiment files; the word file may come first.", show_default=False),
    ] = None,
    files: Annotated[list[Path] | None, option(("-f", "--config-file"), "FILE", "An experiment file.")] = None,
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
        bool, flag("--checkpoint-at-end", "Write a checkpoint at the end (the default).")
    ] = False,
    overrides: Overrides = None,
    out: Annotated[
        Path, option(("--out", "--local-dir"), "DIR", "Directory in which runs are created.", envvar="RLEXP_OUT")
    ] = DEFAULT_OUT,
    name: Name = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    seed: Seed = None,
    imports: Imports = None,
    names: Names = None,
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
    options = locals()
    from rlexp.commands import answers, requests

    given = (*(files or ()), *(Path(word) for word in (words or ()) if word != "file"))
    source = requests.source_of(given, algo, env, "train", experiment_name)
    checkpoints = requests.checkpoint_flags(checkpoint_freq, checkpoint_at_end)
    flags = (*requests.experiment_flags(stop, lr, config), *requests.seed_flags(seeds or num_samples), *checkpoints)
    answers.train(requests.training_request("run", options, source, flags), dry_run)


_AN_EXPERIMENT: Final = "init --algo {agent} --env {env}"
"""The command that writes a file for an agent and an env that are named in place of one."""


def check(
    files: Files,
    overrides: Overrides = None,
    seed: Seed = None,
    imports: Imports = None,
    names: Names = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    address: Address = None,
    make_envs: Annotated[
        bool, flag("--env", "Also make each env and play episodes for up to 3 s, in a process of its own.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check experiment files: print all errors, or the trials they make.

    Nothing is trained or created.
    """
    from rlexp.cluster.session import choose
    from rlexp.commands.answers import check_plan
    from rlexp.commands.requests import load_options, refuse_names
    from rlexp.config.load import load_plan

    refuse_names(files, _AN_EXPERIMENT)
    joining = choose(address, os.environ)
    options = load_options(imports, allow_unknown, fit, joining, names)
    load = partial(load_plan, files, overrides or (), seed, options)
    check_plan(load, joining, as_json=as_json, make_envs=make_envs)


def convert(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="An experiment file for any RLlib release.",
            show_default=False,
            autocompletion=complete_file,
        ),
    ],
    imports: Imports = None,
    names: Names = None,
    allow_unknown: AllowUnknown = False,
    debug: Debug = False,
) -> None:
    """Print an experiment file in current spelling.

    Each change has a comment.
    """
    from rlexp.commands.requests import load_options, refuse_names
    from rlexp.config.load import converted_file

    refuse_names([path], _AN_EXPERIMENT)
    print(converted_file(path, load_options(imports, allow_unknown, names=names)), end="")


def doctor(
    clean: Annotated[bool, flag("--clean", "Remove what killed commands left behind.")] = False,
    address: Annotated[
        str | None,
        option(
            ("--address", "--ray-address"),
            "HOST:PORT",
            "The Ray cluster with this head (auto: this machine's); without it, this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print versions, hardware, and what killed commands left behind.

    With --address it prints the same of all nodes of a Ray cluster, and what keeps experiments from running there.
    """
    from rlexp.cluster.environment import set_ray_environment
    from rlexp.cluster.room.machine import this_machine
    from rlexp.cluster.session import choose
    from rlexp.cluster.shortcuts import SHORTCUTS
    from rlexp.processes.family import find_leftovers
    from rlexp.terminal.checking import print_condition

    if address is not None and (joining := choose(address, os.environ)).address is not None:
        if clean:
            raise UsageError("--clean is for this machine, not for a cluster", "leave --address out")
        return _examine(joining.address, as_json)
    leftovers = find_leftovers()
    if clean:
        for leftover in leftovers:
            leftover.remove()
    set_ray_environment(debug)
    shortcuts = {each.name: each.why_off() for each in SHORTCUTS}
    return print_condition(this_machine(), shortcuts, leftovers, clean, as_json)


def _examine(address: str, as_json: bool) -> None:
    """Print the nodes of a cluster; raises ResourceError if one of them cannot run experiments."""
    from rlexp.cluster.probe import Question, probe_cluster
    from rlexp.terminal.checking import print_nodes

    report = probe_cluster(address, Question(out=Path(os.environ.get("RLEXP_OUT", DEFAULT_OUT))))
    print_nodes(report, as_json)
    report.refuse_problems()
