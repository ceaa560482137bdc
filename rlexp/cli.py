"""The command line: the app, its commands, and how an error ends one."""

from __future__ import annotations

import errno
import inspect
import signal
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rlexp import __version__
from rlexp.commands import board_group, explaining, exporting, joining, reading, submitting, training
from rlexp.commands.options import ErrorOptions
from rlexp.commands.override_words import CommandWithOverrides
from rlexp.errors import RlexpError, UsageError
from rlexp.terminal import print_error
from rlexp.terminal.output_streams import open_output_streams

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ANSWER_SIGNALS = {"run", "sweep", "resume", "join", "submit", "board"}
"""Commands that create nothing before they have signal handlers of their own: until then Ctrl-C ends them at once."""

_OTHER_NAMES = {"rollout": "evaluate", "tune": "sweep", "version": "--version", "list": "ls", "help": "--help"}
"""What commands are called by RLlib, or by other programs."""


class _Commands(TyperGroup):
    """The commands; the error of an unknown one names the one that was probably meant."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raises UsageError where there is none of that name."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not cmd_name.startswith("-") and not ctx.resilient_parsing:  # it completes a word
            close = [_OTHER_NAMES.get(cmd_name), *get_close_matches(cmd_name, self.commands, n=1)]
            meant = next(filter(None, close), None)
            hint = f"did you mean rlexp {meant}?" if meant else "rlexp -h lists the commands"
            raise UsageError(f"unknown command {cmd_name}", hint)
        return command


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run a command; an error that its user can correct becomes ``error:`` and ``hint:`` lines and an exit code."""
    open_output_streams()
    errors = ErrorOptions()
    try:
        _run_app(errors)
    except RlexpError as error:
        if errors.show_tracebacks:
            traceback.print_exception(error)
        print_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _DISK_ERRORS or errors.show_tracebacks:
            raise
        where = f" {error.filename}" if error.filename else ""
        print_error(
            RlexpError(f"cannot write{where}: {error.strerror}", "what was written before is kept; free some space")
        )
        sys.exit(RlexpError.exit_code)


def _run_app(errors: ErrorOptions) -> None:
    """Run the command, and write out what it printed: at the interpreter's end an error would be past handling."""
    try:
        app(obj=errors, prog_name="rlexp")
    finally:
        sys.stdout.flush()


def _first_paragraph(command: Callable[..., None]) -> str:
    """Return a command's line in the list of commands; given explicitly, it is wrapped on narrow terminals, not cut."""
    return " ".join(inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0].split())


def _class_of(command: Callable[..., None]) -> type[TyperCommand]:
    return CommandWithOverrides if "overrides" in inspect.signature(command).parameters else TyperCommand


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlexp {__version__}")
        raise typer.Exit


@app.callback()
def rlexp(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train reinforcement-learning agents (Ape-X, DQN, PPO) from YAML experiment files."""
    if context.invoked_subcommand not in _ANSWER_SIGNALS and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


for command in (
    explaining.check,
    training.run,
    training.sweep,
    training.resume,
    joining.join,
    submitting.submit,
    submitting.tasks,
    submitting.cancel,
    reading.evaluate,
    exporting.export,
    reading.logs,
    reading.compare,
    reading.ls,
    reading.tensorboard,
    training.train,
    explaining.explain,
    explaining.schema,
    explaining.convert,
    explaining.doctor,
):
    app.command(cls=_class_of(command), short_help=_first_paragraph(command))(command)
app.add_typer(board_group.board_app, name="board", short_help=_first_paragraph(board_group.board))
