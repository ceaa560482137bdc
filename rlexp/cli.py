"""The command line: the app, its commands, and how an error ends one."""

from __future__ import annotations

import ast
import errno
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from rlexp import __version__
from rlexp.commands.command import APP_SETTINGS, HELP_OPTIONS, ErrorOptions, command_class, hint_for_command
from rlexp.errors import RlexpError, UsageError
from rlexp.processes.signals import let_ctrl_c_raise
from rlexp.processes.threads import few_collections
from rlexp.terminal.lines import open_output_streams, print_error

PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "Train": dict.fromkeys(("run", "sweep", "resume", "train"), "training"),
    "Write experiment files": {
        **dict.fromkeys(("examples", "init"), "starting"),
        "check": "training",
        **dict.fromkeys(("explain", "schema"), "results"),
        "convert": "training",
    },
    "Look at results": dict.fromkeys(("ls", "logs", "compare", "tensorboard", "prune"), "results"),
    "Use a policy": dict.fromkeys(("evaluate", "export"), "results"),
    "Train on other machines": {
        "doctor": "training",
        "board": "board",
        "join": "join",
        **dict.fromkeys(("submit", "tasks", "cancel"), "submit"),
    },
}
"""Each command, which is a function of that name, and its module of ``rlexp.commands``, in the order of ``--help``."""
COMMANDS: Final[Mapping[str, str]] = {name: module for panel in PANELS.values() for name, module in panel.items()}
_PACKAGE: Final = "rlexp.commands"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM)
_FREE_SPACE = "what was written before is kept; free some space"
_ANSWER_SIGNALS = {"run", "sweep", "resume", "join", "submit", "board"}
"""Commands that create nothing before they have signal handlers of their own; until then Ctrl-C ends them at once."""


class _Commands(TyperGroup):
    """The commands, each imported when it is called; an unknown name's error suggests the nearest command."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raises UsageError if there is none of that name."""
        if cmd_name in COMMANDS:
            return command_of(cmd_name)
        if not cmd_name.startswith("-") and not ctx.resilient_parsing:  # it completes a word
            raise UsageError(f"unknown command {cmd_name}", hint_for_command(cmd_name, COMMANDS))
        return None

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands that complete a word, with their lines in the list, without importing them."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from typer.core import CompletionItem  # type: ignore[attr-defined]  # of the Click in it, which has no name

        return [CompletionItem(name, help=summary_of(name)) for name in COMMANDS if name.startswith(incomplete)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List them; importing all of them would take most of the time of ``--help``."""
        width = max(map(len, COMMANDS))
        for title, names in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary_of(name)) for name in names])


app = typer.Typer(cls=_Commands, **APP_SETTINGS)


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
        if error.errno not in (*_DISK_ERRORS, *_PERMISSION_ERRORS) or errors.show_tracebacks:
            raise
        where, is_refused = f" {error.filename}" if error.filename else "", error.errno in _PERMISSION_ERRORS
        hint = "name another place, or change who may use it" if is_refused else _FREE_SPACE
        print_error(RlexpError(f"cannot {'use' if is_refused else 'write'}{where}: {error.strerror}", hint))
        sys.exit(RlexpError.exit_code)


def _run_app(errors: ErrorOptions) -> None:
    """Run the command, and flush its output, as an error at the interpreter's end could not be handled."""
    try:
        app(obj=errors, prog_name="rlexp")
    finally:
        sys.stdout.flush()


@cache
def command_of(name: str) -> TyperCommand | TyperGroup:
    """Import a command, or the group of ``board``."""
    with few_collections():
        module = import_module(f"{_PACKAGE}.{COMMANDS[name]}")
    if name == "board":
        group = get_group(module.board_app)
        group.name = name
        return group
    function = getattr(module, name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # with its own help option: Click keeps the one of the first call, which may lack the app
    alone.command(cls=command_class(function), short_help=summary_of(name), context_settings=HELP_OPTIONS)(function)
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


def summary_of(name: str) -> str:
    """Return a command's line in the list of commands, the first paragraph of its docstring, without an import.

    Given explicitly, it is wrapped on narrow terminals, not cut.
    """
    source = Path(__file__).with_name("commands") / f"{COMMANDS[name]}.py"
    functions = (node for node in _parsed(source).body if isinstance(node, ast.FunctionDef))
    text = next(ast.get_docstring(each) or "" for each in functions if each.name == name)
    return " ".join(text.partition("\n\n")[0].split())


@cache
def _parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


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
    """Train reinforcement-learning agents (Ape-X, DQN, PPO, PQN, SAC, TD3, A2C and more) from YAML experiment files."""
    if context.invoked_subcommand not in _ANSWER_SIGNALS:
        let_ctrl_c_raise()
