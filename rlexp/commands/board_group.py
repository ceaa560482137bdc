"""``rlexp board …``: the commands for those who have a board of their own."""

from __future__ import annotations

import inspect

import typer

from rlexp.commands import board_keys

board_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@board_app.callback()
def board() -> None:
    """Set up a board: keys and tokens for those who train and play over it."""


for command in (board_keys.keys,):
    paragraph = inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]
    board_app.command(short_help=" ".join(paragraph.split()))(command)
