"""The command that looks at this machine, or at the nodes of a cluster: ``doctor``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rlexp.cluster.room import this_machine
from rlexp.cluster.session import ADDRESS_OPTION, choose
from rlexp.commands.output_options import AsJson, Debug
from rlexp.errors import UsageError
from rlexp.processes.family import find_leftovers
from rlexp.terminal.cluster_condition import print_nodes
from rlexp.terminal.condition import print_condition


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
    return print_condition(this_machine(), leftovers, clean, as_json)


def _examine(address: str, as_json: bool) -> None:
    """Print the nodes of a cluster; raises ResourceError where one of them cannot run experiments."""
    from rlexp.cluster.probe import Question, probe_cluster

    report = probe_cluster(address, Question(out=Path(os.environ.get("RLEXP_OUT", "results"))))
    print_nodes(report, as_json)
    report.refuse_problems()
