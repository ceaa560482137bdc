"""What the user of a command allows a run to name: by options, at a terminal by an answer, or by training with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from rlexp.terminal.lines import print_notice_list

if TYPE_CHECKING:  # commands that only read results load none of these
    from rlexp.config.plan import Plan
    from rlexp.user_code.finding import ModuleFile
    from rlexp.user_code.trusted_code import Part, TrustedCode

ImportsOfRun = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import this module, which the run may name; repeatable."),
]
AllowEnv = Annotated[
    list[str] | None,
    typer.Option("--allow-env", metavar="ENV", help="The run may play this env of a module; repeatable."),
]
AllowClass = Annotated[
    list[str] | None,
    typer.Option("--allow-class", metavar="MODULE:CLASS", help="The run may name this class; repeatable."),
]
AllowStorage = Annotated[
    list[str] | None,
    typer.Option("--allow-storage", metavar="URL", help="The run may use this storage; repeatable."),
]


def trusted_code(
    imports: Iterable[str] | None,
    envs: Iterable[str] | None,
    classes: Iterable[str] | None,
    storages: Iterable[str] | None,
) -> TrustedCode:
    """Return what options allow; what they do not is asked for where somebody can answer."""
    from rlexp.user_code.trusted_code import TrustedCode

    can_answer = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return TrustedCode.of(imports, envs, classes, storages, ask_at_terminal if can_answer else None)


def ask_at_terminal(part: Part, file: ModuleFile) -> bool:
    """Show the file that would be run; return whether the user lets it."""
    print(f"the run names {part.name!r}, which you have not trained with, or which has changed since:", file=sys.stderr)
    print(f"  {file.file!r}\n  sha256 {file.sha256}", file=sys.stderr)
    print("run this file, now and in later commands? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def remember_ones_own(plan: Plan) -> None:
    """Remember the code and storages of files that this user trains; say it where that is not possible."""
    from rlexp.board.messages.address import handed_task
    from rlexp.user_code.memory import remember_plan

    if handed_task() is not None:  # the file is a stranger's, whose parts were allowed on the call that joined
        return
    notice = remember_plan(plan)
    if notice is not None:
        print_notice_list([notice], "")
