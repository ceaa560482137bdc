"""What ``rlexp board check`` prints, a line for each finding and what to do about it, and ``board acl``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rlexp.board.servers.access import ROLES
from rlexp.terminal.board_findings import Finding, Level
from rlexp.terminal.lines import CYAN, GREEN, RED, YELLOW, painted, visible
from rlexp.text import columns_of, wrapped

_COLOURS: Final = {Level.OK: GREEN, Level.WARNING: YELLOW, Level.PROBLEM: RED, Level.UNKNOWN: CYAN}


def print_findings(server: str, findings: Sequence[Finding], as_json: bool) -> None:
    """Print what was found out about ``server``, which has no password."""
    if as_json:
        is_ok = all(finding.level is not Level.PROBLEM for finding in findings)
        print(json.dumps({"server": server, "ok": is_ok, "checks": [asdict(finding) for finding in findings]}))
        return
    print(visible(server))
    width = max((len(finding.check) for finding in findings), default=0)
    longest = max(map(len, Level))
    indent, columns = " " * (width + longest + 4), columns_of(sys.stdout)
    for finding in findings:
        level = painted(f"{finding.level:{longest}}", _COLOURS[finding.level], sys.stdout)
        print(f"{finding.check:{width}}  {level}  {wrapped(visible(finding.text), columns, indent, len(indent))}")
        if finding.hint:
            print(wrapped(f"{indent}{visible(finding.hint)}", columns, indent))


def print_access(names: Sequence[str], version: tuple[int, int], as_commands: bool) -> None:
    """Print the rules of roles, as lines of ``users.acl`` and ``redis.conf``, or as commands for redis-cli."""
    start = "ACL SETUSER" if as_commands else "user"
    for role in ROLES:
        if role.name in names:
            print(f"{start} {role.name} {role.template(version)}")
