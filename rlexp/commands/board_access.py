"""``rlexp board acl``: the access rules of roles, for a Redis or Valkey that somebody else runs."""

from __future__ import annotations

from typing import Annotated

import typer

from rlexp.board.servers.access import FIRST_WITH_READ_ONLY_KEYS, OLDEST, ROLES
from rlexp.commands.output_options import Debug
from rlexp.errors import UsageError
from rlexp.terminal.board_checks import print_access

Roles = Annotated[list[str] | None, typer.Option("--role", metavar="ROLE", help="This role only; repeatable.")]
AsCommands = Annotated[bool, typer.Option("--commands", help="As commands for redis-cli (ACL SETUSER).")]
Old = Annotated[
    bool, typer.Option("--old", help="For Redis 6.2, where keys that a role reads can also be written by it.")
]


def acl(
    role: Roles = None,
    as_commands: AsCommands = False,
    old: Old = False,
    debug: Debug = False,
) -> None:
    """Print the access rules that actors, trainers and clients need, for a Redis or Valkey that somebody else runs.

    Lines for its users.acl or redis.conf, each with a word in place of the password.
    """
    known = [each.name for each in ROLES]
    if unknown := set(role or ()) - set(known):
        raise UsageError(f"no role is called {min(unknown)}", f"the roles are {', '.join(known)}")
    print_access(role or known, OLDEST if old else FIRST_WITH_READ_ONLY_KEYS, as_commands)
