"""``rlexp board …``: the commands for those who have a board of their own."""

from __future__ import annotations

import inspect

import typer

from rlexp.commands import board_access, board_checking, board_keys, board_serving
from rlexp.commands.output_options import HELP_OPTIONS

board_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)


@board_app.callback()
def board() -> None:
    """Set up a board for those who train and play over it: start one, examine it, make rules and tokens."""


for command in (board_serving.serve, board_checking.check, board_access.acl, board_keys.keys):
    paragraph = inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]
    board_app.command(short_help=" ".join(paragraph.split()), context_settings=HELP_OPTIONS)(command)
