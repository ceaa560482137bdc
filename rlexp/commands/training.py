"""Commands that train: ``run``, ``sweep``, ``resume``, and ``train``, which is ``run`` with RLlib's options too.

Each declares its options, which is all that help and completion load, and makes a request of them that
``commands/answers.py`` answers. Below are those that check and train nothing: ``check`` and ``convert`` for files,
``doctor`` for a machine or a cluster.
"""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from rlexp.commands import options
from rlexp.commands.command import DEFAULT_OUT, Panel, argument, option, whole
from rlexp.commands.completion import complete_file, complete_run
from rlexp.errors import UsageError


def run(
    files: options.FilesOrNone = None,
    algo: options.Algo = None,
    env: options.Env = None,
    stop: options.Stop = None,
    seeds: options.Seeds = None,
    lr: options.LearningRate = None,
    overrides: options.Overrides = None,
    out: options.Out = DEFAULT_OUT,
    name: options.Name = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    imports: options.Imports = None,
    names: options.Names = None,
    allow_unknown: options.AllowUnknown = False,
    fit: options.Fit = False,
    address: options.Address = None,
    wait: options.Wait = None,
    working_dir: options.WorkingDir = False,
    board: options.BoardUrl = None,
    keys: options.MasterOption = None,
    queue: options.QueueUrl = None,
    insecure: options.Insecure = False,
    track: options.Track = None,
    quiet: options.Quiet = False,
    as_json: options.AsJsonLines = False,
    debug: options.Debug = False,
) -> None:
    """Train the experiments in files, or without a file an agent on an env.

    A run is named after its experiment, or after the first file if there are several experiments. Without a file,
    --algo and --env choose settings that fit the env and this machine; the run keeps them as experiment.yaml.
    """
    parameters = locals()
    from rlexp.commands import answers, requests

    source = requests.source_of(files, algo, env, "run")
    flags = (*requests.experiment_flags(stop, lr), *requests.seed_flags(seeds))
    answers.train(requests.training_request("run", parameters, source, flags), dry_run)


def sweep(
    file: Annotated[Path | None, argument("FILE", "A file with one experiment.", complete_file)] = None,
    algo: options.Algo = None,
    env: options.Env = None,
    stop: options.Stop = None,
    searched: options.Searched = None,
    searcher: Annotated[
        options.SearcherName | None, option("--searcher", "How configurations are chosen.", Panel.SEARCHED)
    ] = None,
    scheduler: Annotated[
        options.SchedulerName | None, option("--scheduler", "Which trials end early.", Panel.SEARCHED)
    ] = None,
    num_samples: Annotated[
        int | None, whole("--num-samples N", "Configurations to try.", 1, panel=Panel.SEARCHED)
    ] = None,
    num_seeds: options.SeedsOfConfigurations = None,
    max_concurrent: Annotated[
        int | None, whole("--max-concurrent N", "Most trials at a time.", 1, panel=Panel.LIMITS)
    ] = None,
    time_budget_s: options.TimeBudget = None,
    metric: Annotated[str | None, option("--metric NAME", "Metric to rank by.", Panel.SEARCHED)] = None,
    mode: Annotated[
        options.Mode | None, option("--mode", "Whether higher (max) or lower (min) is better.", Panel.SEARCHED)
    ] = None,
    allow_failures: Annotated[
        int, whole("--allow-failures N", "Exit with 0 if at most N trials fail.", 0, panel=Panel.LIMITS)
    ] = 0,
    overrides: options.Overrides = None,
    out: options.Out = DEFAULT_OUT,
    name: options.Name = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    imports: options.Imports = None,
    names: options.Names = None,
    allow_unknown: options.AllowUnknown = False,
    fit: options.Fit = False,
    address: options.Address = None,
    wait: options.Wait = None,
    working_dir: options.WorkingDir = False,
    board: options.NoBoard = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
    as_json: options.AsJsonLines = False,
    debug: options.Debug = False,
) -> None:
    """Search hyperparameters over the samplers and grids of a file.

    The file's search section says how; options override it. A file without the section is searched
    over its grids, or at random where it has samplers. At the end there are a ranking, trials.csv,
    and best.yaml for rlexp run.
    """
    parameters = locals()
    from rlexp.commands import answers, requests

    section: dict[str, Any] = {"searcher": searcher, "scheduler": scheduler, "metric": metric, "mode": mode}
    section |= {"num_samples": num_samples, "num_seeds": num_seeds}
    section |= {"max_concurrent": max_concurrent, "time_budget_s": time_budget_s}
    source = requests.source_of([] if file is None else [file], algo, env, "sweep")
    flags = (*requests.experiment_flags(stop), *requests.search_flags(section, searched or ()))
    answers.train(requests.training_request("sweep", parameters, source, flags), dry_run)


def resume(
    path: Annotated[Path, argument("DIR", "A run or sweep.", complete_run)],
    overrides: options.Overrides = None,
    address: options.Address = None,
    wait: options.Wait = None,
    working_dir: options.WorkingDir = False,
    board: options.BoardUrl = None,
    keys: options.MasterOption = None,
    queue: options.QueueUrl = None,
    insecure: options.Insecure = False,
    track: options.Track = None,
    imports: options.ImportsOfRun = None,
    allow_env: options.AllowEnv = None,
    allow_class: options.AllowClass = None,
    allow_storage: options.AllowStorage = None,
    quiet: options.Quiet = False,
    as_json: options.AsJsonLines = False,
    debug: options.Debug = False,
) -> None:
    """Resume a stopped or killed run or sweep.

    Each trial continues from its newest checkpoint. -o stop.timesteps_total=2e6 sets a later stop,
    -o search.num_samples=30 makes a sweep larger. Keys of resources and reports may change, others may not. Modules,
    classes and storages that you have not trained with have to be allowed.
    """
    parameters = locals()
    from rlexp.commands import answers, requests

    answers.train(requests.training_request("resume", parameters))


def train(
    words: Annotated[list[str] | None, argument("FILE", "Experiment files; the word file may come first.")] = None,
    files: Annotated[list[Path] | None, option("-f --config-file FILE", "An experiment file.")] = None,
    algo: options.Algo = None,
    env: options.Env = None,
    config: Annotated[str | None, option("--config JSON", "Keys of config, as JSON.")] = None,
    stop: options.Stop = None,
    experiment_name: Annotated[str, option("--experiment-name NAME", "Name of the run without a file.")] = "default",
    seeds: options.Seeds = None,
    num_samples: Annotated[int | None, whole("--num-samples N", "As --seeds.", 1)] = None,
    lr: options.LearningRate = None,
    checkpoint_freq: Annotated[
        int | None, whole("--checkpoint-freq N", "Iterations between checkpoints; 0 for none.", 0)
    ] = None,
    checkpoint_at_end: Annotated[
        bool, option("--checkpoint-at-end", "Write a checkpoint at the end (the default).")
    ] = False,
    overrides: options.Overrides = None,
    out: Annotated[
        Path, option("--out --local-dir DIR", "Directory in which runs are created.", envvar="RLEXP_OUT")
    ] = DEFAULT_OUT,
    name: options.Name = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    imports: options.Imports = None,
    names: options.Names = None,
    allow_unknown: options.AllowUnknown = False,
    fit: options.Fit = False,
    address: options.Address = None,
    wait: options.Wait = None,
    working_dir: options.WorkingDir = False,
    board: options.BoardUrl = None,
    keys: options.MasterOption = None,
    queue: options.QueueUrl = None,
    insecure: options.Insecure = False,
    track: options.Track = None,
    quiet: options.Quiet = False,
    as_json: options.AsJsonLines = False,
    debug: options.Debug = False,
) -> None:
    """Train as rlexp run does, with RLlib's options too.

    `train file FILE`, `train -f FILE`, or `train --run DQN --env CartPole-v1`.
    """
    parameters = locals()
    from rlexp.commands import answers, requests

    given = (*(files or ()), *(Path(word) for word in (words or ()) if word != "file"))
    source = requests.source_of(given, algo, env, "train", experiment_name)
    checkpoints = requests.checkpoint_flags(checkpoint_freq, checkpoint_at_end)
    flags = (*requests.experiment_flags(stop, lr, config), *requests.seed_flags(seeds or num_samples), *checkpoints)
    answers.train(requests.training_request("run", parameters, source, flags), dry_run)


_AN_EXPERIMENT: Final = "init --algo {agent} --env {env}"
"""The command that writes a file for an agent and an env that are named in place of one."""


def check(
    files: options.Files,
    overrides: options.Overrides = None,
    seed: options.Seed = None,
    imports: options.Imports = None,
    names: options.Names = None,
    allow_unknown: options.AllowUnknown = False,
    fit: options.Fit = False,
    address: options.Address = None,
    make_envs: Annotated[
        bool, option("--env", "Also make each env and play episodes for up to 3 s, in a process of its own.")
    ] = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Check experiment files: print the errors, or the trials they make.

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
    path: Annotated[Path, argument("FILE", "An experiment file for any RLlib release.", complete_file)],
    imports: options.Imports = None,
    names: options.Names = None,
    allow_unknown: options.AllowUnknown = False,
    debug: options.Debug = False,
) -> None:
    """Print an experiment file in current spelling.

    Each change has a comment.
    """
    from rlexp.commands.requests import load_options, refuse_names
    from rlexp.config.load import converted_file

    refuse_names([path], _AN_EXPERIMENT)
    text = converted_file(path, load_options(imports, allow_unknown, names=names))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # a file's encoding, whatever the terminal's is
    print(text, end="")


def doctor(
    clean: Annotated[bool, option("--clean", "Remove what killed commands left behind.")] = False,
    address: Annotated[
        str | None,
        option(
            "--address --ray-address HOST:PORT",
            "The Ray cluster with this head (auto: this machine's); without it, this machine.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
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
