"""Commands that check and train nothing: ``check`` and ``convert`` for files, ``doctor`` for a machine or a cluster."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from rlexp.commands.command import DEFAULT_OUT, flag, option
from rlexp.commands.completion import complete_file
from rlexp.commands.options import Address, AllowUnknown, AsJson, Debug, Files, Fit, Imports, Names, Overrides, Seed
from rlexp.errors import UsageError

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
