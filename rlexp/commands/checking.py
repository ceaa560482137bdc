"""Commands that check and train nothing: ``check`` and ``convert`` for files, ``doctor`` for a machine or a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlexp.cluster.environment import set_ray_environment
from rlexp.cluster.room.fit import check_fits
from rlexp.cluster.room.machine import check_requirements, this_machine
from rlexp.cluster.session import ADDRESS_OPTION, Joining, choose
from rlexp.cluster.shortcuts import SHORTCUTS
from rlexp.commands.basic_options import AsJson, Debug
from rlexp.commands.completion import complete_file
from rlexp.commands.options import Address, AllowUnknown, Files, Fit, Imports, Overrides, Seed, load_options, room_of
from rlexp.commands.without_file import refuse_names
from rlexp.config.load import Plan, converted_file, load_plan
from rlexp.errors import ConfigError, Problem, RlexpError, UsageError
from rlexp.processes.family import find_leftovers
from rlexp.terminal.checking import (
    plan_as_json,
    print_checked,
    print_condition,
    print_envs,
    print_nodes,
    print_notices,
    print_plan,
    print_preset,
    print_settings,
)

if TYPE_CHECKING:
    from rlexp.terminal.checking import EnvReport


def check(
    files: Files,
    overrides: Overrides = None,
    seed: Seed = None,
    imports: Imports = None,
    allow_unknown: AllowUnknown = False,
    fit: Fit = False,
    address: Address = None,
    make_envs: Annotated[
        bool, typer.Option("--env", help="Also make each env and play episodes for up to 3 s, in a process of its own.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check experiment files: print all errors, or the trials they make.

    Nothing is trained or created.
    """
    refuse_names(files, "init --algo {agent} --env {env}")
    joining = choose(address, os.environ)
    options = load_options(imports, allow_unknown, fit, joining)
    load = partial(load_plan, files, overrides or (), seed, options)
    check_plan(load, joining, as_json=as_json, make_envs=make_envs)


def check_plan(load: Callable[[], Plan], joining: Joining, *, as_json: bool, make_envs: bool = False) -> None:
    """Print the trials of a plan and what of them was checked; raise the errors of the files that ``load`` reads."""
    plan, envs, is_joined = None, None, joining.address is not None
    error: RlexpError | None = None
    try:
        plan = load()
        _check_together(plan, joining)
        envs = _made_envs(plan) if make_envs else None
        error = _error_of_envs(envs or ())
    except RlexpError as caught:
        error = caught
    if as_json:
        print(json.dumps(plan_as_json(plan, error, envs, is_joined)))
    elif plan:
        print_settings(plan)
        print_notices(plan)
        print_plan(plan)
        if error:
            print_envs(envs or ())
        else:
            print_checked(plan, envs, is_joined)
            print_preset(plan)
    if error:
        raise error


def _check_together(plan: Plan, joining: Joining) -> None:
    """Raise what is missing here, and what does not fit, in one error."""
    problems: list[Problem] = []
    first: RlexpError | None = None
    checks = (check_requirements, lambda plan: check_fits(plan.everything, room_of(joining)), _require_samplers)
    for check_one in checks:
        try:
            check_one(plan)
        except RlexpError as error:
            first = first or error
            problems += error.problems
    if first is not None:
        raise first if problems == list(first.problems) else ConfigError(problems)


def _require_samplers(plan: Plan) -> None:
    """Raise UsageError or ConfigError if a sweep cannot have its sampler of Optuna."""
    if plan.sweeps:
        from rlexp.search.optuna import require_sampler

        for sweep in plan.sweeps:
            require_sampler(sweep)


def _made_envs(plan: Plan) -> list[EnvReport]:
    from rlexp.tuning.preflight import try_envs

    return try_envs(
        plan.everything, plan.modules, this_machine(), plan.env_places, plan.copies_trials, plays_episodes=True
    )


def _error_of_envs(envs: Sequence[EnvReport]) -> ConfigError | None:
    problems = [problem for report in envs for problem in report.errors]
    return ConfigError(problems) if problems else None


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
    allow_unknown: AllowUnknown = False,
    debug: Debug = False,
) -> None:
    """Print an experiment file in current spelling.

    Each change has a comment.
    """
    refuse_names([path], "init --algo {agent} --env {env}")
    print(converted_file(path, load_options(imports, allow_unknown)), end="")


def doctor(
    clean: Annotated[bool, typer.Option("--clean", help="Remove what killed commands left behind.")] = False,
    address: Annotated[
        str | None,
        typer.Option(
            ADDRESS_OPTION,
            "--ray-address",
            metavar="HOST:PORT",
            help="The Ray cluster with this head (auto: this machine's); without it, this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print versions, hardware, and what killed commands left behind.

    With --address it prints the same of all nodes of a Ray cluster, and what keeps experiments from running there.
    """
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

    report = probe_cluster(address, Question(out=Path(os.environ.get("RLEXP_OUT", "results"))))
    print_nodes(report, as_json)
    report.refuse_problems()
