"""The options of RLlib's command line that describe an experiment: as an experiment file, or refused beside one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from rlexp.config.command_line import LoadOptions, option_at
from rlexp.config.load import Plan, load_plan
from rlexp.errors import ConfigError, UsageError

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
