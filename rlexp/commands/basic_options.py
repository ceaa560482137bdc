"""Options that several commands share: numbers with a range in their errors, output formats, and trusted code.

They load nothing of what experiments are made of. Code that a run names is trusted by options, by an answer at a
terminal, or by having trained with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rlexp.commands.command import Panel
from rlexp.errors import UsageError
from rlexp.terminal.lines import print_notice_list
from rlexp.text import seconds_of

if TYPE_CHECKING:  # commands that only read results load none of these
    from rlexp.config.plan import Plan
    from rlexp.user_code.finding import ModuleFile
    from rlexp.user_code.trusted_code import Part, TrustedCode

MOST: Final = 10**15
"""Far above any count or time that will be reached; exact in a float and in JSON."""
_LONGEST_SHOWN: Final = 60
DEFAULT_OUT: Final = Path("results")
"""The directory in which runs are created if nothing names another."""


def whole(
    option: str | tuple[str, ...],
    metavar: str,
    sentence: str,
    least: int,
    most: int = MOST,
    panel: Panel | None = None,
) -> Any:
    """Return an option that takes a whole number from ``least`` to ``most``; ``sentence`` explains it in its help."""
    return _option(option, metavar, sentence, int, f"a whole number from {least} to {most}", (least, most), panel)


def real(option: str, metavar: str, sentence: str, least: float, most: float = MOST, panel: Panel | None = None) -> Any:
    """Return an option that takes a finite number from ``least`` to ``most``; ``sentence`` explains it in its help."""
    return _option(option, metavar, sentence, float, f"a number from {least:g} to {most:g}", (least, most), panel)


def duration(*options: str, sentence: str, panel: Panel | None = None) -> Any:
    """Return an option that takes a duration, such as 90s or 2h, as seconds; ``sentence`` explains it in its help."""
    return typer.Option(
        *options,
        metavar="DURATION",
        parser=lambda text: seconds_of(text, options[0]),
        help=sentence,
        rich_help_panel=panel,
    )


def _option(
    options: str | tuple[str, ...],
    metavar: str,
    sentence: str,
    kind: Callable[[str], float],
    expected: str,
    bounds: tuple[float, float],
    panel: Panel | None,
) -> Any:
    names = (options,) if isinstance(options, str) else options
    option = names[0]

    def read(text: str) -> float:
        with suppress(ValueError):
            value = kind(text)
            if bounds[0] <= value <= bounds[1]:  # NaN is not
                return value
        raise UsageError(f"{option} must be {expected}, got {_shown(text)}", f"{option} {metavar}: {sentence}")

    return typer.Option(*names, metavar=metavar, parser=read, help=sentence, rich_help_panel=panel)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


HELP_OPTIONS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}
"""Settings of a context: the options that print what a command does."""

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=Panel.OUTPUT)
]
AsJsonLines = Annotated[
    bool, typer.Option("--json", help="Print JSON lines, one per event.", rich_help_panel=Panel.OUTPUT)
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print only errors and the summary.", rich_help_panel=Panel.OUTPUT)
]


@dataclass
class ErrorOptions:
    """How an error that ends a command is shown: the ``obj`` of the command's context."""

    show_tracebacks: bool = False


def _show_tracebacks(context: typer.Context, debug: bool) -> bool:
    context.ensure_object(ErrorOptions).show_tracebacks = debug
    return debug


Debug = Annotated[bool, typer.Option("--debug", callback=_show_tracebacks, is_eager=True, help="Show tracebacks.")]

ImportsOfRun = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module, which the run may name; repeatable.",
        rich_help_panel=Panel.CODE,
    ),
]
AllowEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-env",
        metavar="ENV",
        help="The run may play this env of a module; repeatable.",
        rich_help_panel=Panel.CODE,
    ),
]
AllowClass = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-class",
        metavar="MODULE:CLASS",
        help="The run may name this class; repeatable.",
        rich_help_panel=Panel.CODE,
    ),
]
AllowStorage = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-storage", metavar="URL", help="The run may use this storage; repeatable.", rich_help_panel=Panel.CODE
    ),
]


def trusted_code(
    imports: Iterable[str] | None,
    envs: Iterable[str] | None,
    classes: Iterable[str] | None,
    storages: Iterable[str] | None,
) -> TrustedCode:
    """Return the code that options trust; other code is asked for if somebody can answer."""
    from rlexp.user_code.trusted_code import TrustedCode

    can_answer = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return TrustedCode.of(imports, envs, classes, storages, ask_at_terminal if can_answer else None)


def ask_at_terminal(part: Part, file: ModuleFile) -> bool:
    """Show the file that would be run; return whether the user allows it."""
    print(f"the run names {part.name!r}, which you have not trained with, or which has changed since:", file=sys.stderr)
    print(f"  {file.file!r}\n  sha256 {file.sha256}", file=sys.stderr)
    print("run this file, now and in later commands? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def remember_ones_own(plan: Plan) -> None:
    """Remember the code and storages of files that this user trains; print a note if that is not possible."""
    from rlexp.board.messages.address import handed_task
    from rlexp.user_code.memory import remember_plan

    if handed_task() is not None:  # the file is a stranger's, whose parts were allowed on the call that joined
        return
    notice = remember_plan(plan)
    if notice is not None:
        print_notice_list([notice], "")
