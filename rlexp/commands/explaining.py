"""Commands that show what can be written into experiment files: ``explain``, ``schema``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlexp.commands.completion import complete_name
from rlexp.commands.output_options import Debug


def explain(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="A key, a metric, an agent, or grid_search, asha, uniform ...",
            autocompletion=complete_name,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Explain a key, a metric, a sampler, a searcher or a scheduler.

    Of a key: what it does, its values, its default for each agent, and its other spellings. Without a
    name, or with that of an agent, list all keys with their defaults.
    """
    from rlexp.terminal.explanations import print_explanation

    print_explanation(key)


def schema() -> None:
    """Print the JSON Schema of experiment files, for editors."""
    from rlexp.config.reference.json_schema import experiment_schema

    print(json.dumps(experiment_schema(), indent=1))
