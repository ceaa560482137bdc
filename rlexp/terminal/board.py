"""The output of ``rlexp board``: a board that was started, a line for each finding of a check, access rules."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.servers.probes import Reach, ReachError, ReachObstacle, RedisFacts, Speed
from rlexp.board.servers.redis_scripts import OLDEST, ROLES
from rlexp.board.servers.serving import RoleFiles
from rlexp.terminal.lines import CYAN, GREEN, RED, YELLOW, aligned, painted, visible
from rlexp.text import columns_of, duration, size, wrapped


@dataclass(frozen=True)
class ServedBoard:
    """A board that has just been started."""

    title: str
    """The program and its version."""
    url: str
    """The URL for others, without a password."""
    is_local: bool
    """Whether only this machine reaches it."""
    authority: Path | None
    """The certificates that others must trust; None if their system's are enough."""
    files: RoleFiles
    max_memory: int
    problem: str
    """Why this machine itself cannot reach it by that address; empty if it can."""


def print_served(board: ServedBoard, as_json: bool) -> None:
    """Print what trainers, actors and clients type; only the files are secret."""
    files = board.files
    if as_json:
        _print_json(board)
        return
    trainer, client, actor = (shlex.quote(str(path)) for path in (files.trainer, files.client, files.actors[0]))
    rows = [
        ("train", f". {trainer}; rlexp run FILE"),
        ("play", f". {actor}; rlexp join"),
        ("train what others submit", f". {trainer}; rlexp join --as trainer"),
        ("submit", f". {client}; rlexp submit FILE"),
        ("examine", f". {trainer}; rlexp board check"),
    ]
    lines = [
        f"{board.title} serves {board.url}; it takes up to {size(board.max_memory)} of memory and none of the disk",
        "",
        *aligned(rows),
        "",
        *_for_others(board),
        "These files have passwords: send them as you would send a private key.",
    ]
    if board.problem:
        lines.append(f"warning: this machine does not reach it by that address: {board.problem}")
    print(visible("\n".join([*lines, "Ctrl-C ends the board; what is on it is gone then."])), flush=True)


def _for_others(board: ServedBoard) -> list[str]:
    actors = board.files.actors
    names = actors[0].name if len(actors) == 1 else f"{actors[0].name} … {actors[-1].name}, one each"
    if board.is_local:
        port = board.url.rpartition(":")[2]
        return [
            "Only this machine reaches it. Others do with --bind ADDRESS, or through a tunnel from there:",
            f"  ssh -N -L {port}:127.0.0.1:{port} USER@THIS_MACHINE",
            f"In both cases they need a copy of one of these files; actors need {names}.",
        ]
    authority = f" and of {board.authority}, whose place stands in RLEXP_BOARD" if board.authority else ""
    return [f"Other machines need a copy of one of these files{authority}; actors need {names}."]


def _print_json(board: ServedBoard) -> None:
    files = {
        name: [str(path) for path in value] if isinstance(value, tuple) else str(value)
        for name, value in vars(board.files).items()
    }
    about = {
        "event": "serving",
        "server": board.title,
        "url": board.url,
        "files": files,
        "max_memory_bytes": board.max_memory,
        "problem": board.problem,
    }
    print(json.dumps(about), flush=True)


_CERTIFICATE_S: Final = 14 * 86400.0
_SLOW_S: Final = 0.3
_CLOCK_S: Final = 300.0
_LITTLE_MEMORY: Final = 64 << 20
_FEW_CONNECTIONS: Final = 10
_RULES_HINT: Final = "rlexp board acl prints the rules of roles, for the server's owner"


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """This user may not ask."""


@dataclass(frozen=True)
class BoardCheck:
    """A line."""

    check: str
    level: Level
    text: str
    hint: str | None = None
    """A remedy."""


_REMEDIES: Final[Mapping[ReachObstacle, str]] = {
    ReachObstacle.NAME: "correct the name in the address; try it with ping",
    ReachObstacle.PORT: (
        "start the server, correct the port, or open the firewall; it may listen on loopback only (bind)"
    ),
    ReachObstacle.SILENCE: "open the firewall or the cloud's access rules for this machine, or use a tunnel (ssh -L)",
    ReachObstacle.PLAIN: "give redis:// where the server has no TLS, or the port at which it has it",
    ReachObstacle.AUTHORITY: "add ?ssl_ca_certs=FILE with the authority's certificate to the address",
    ReachObstacle.HOST: "give the name that the certificate is for, or have one made for this name",
    ReachObstacle.TIME: "renew the server's certificate; if it is valid, set this machine's clock",
}


def unreachable(error: ReachError) -> BoardCheck:
    """Return the only finding of a server that cannot be reached."""
    return BoardCheck("reach", Level.PROBLEM, error.reason, _REMEDIES[error.obstacle])


def reach_findings(address: BoardAddress, found: Reach) -> Iterator[BoardCheck]:
    """Yield how the server is reached."""
    where = "this machine" if found.is_this_machine else "a private network" if found.is_private else "public"
    yield BoardCheck("reach", Level.OK, f"{found.peer} ({where}) in {_ms(found.connect_s)}")
    if found.tls_version:
        yield _certificate(found)
    elif found.is_this_machine:
        yield BoardCheck("TLS", Level.OK, "none, and none is needed on this machine")
    else:
        level = Level.WARNING if found.is_private else Level.PROBLEM
        yield BoardCheck("TLS", level, "none: whoever is on the way reads the password", "use rediss://, or a tunnel")
    if not address.password:
        yield BoardCheck(
            "password", Level.WARNING, "none: everybody who reaches the server can use and erase it", _RULES_HINT
        )


def refused(address: BoardAddress, error: BoardError) -> BoardCheck:
    """Return the last finding of a server that can be reached but does not answer as it should."""
    hint = error.hint
    if isinstance(error, BoardLostError) and not address.has_tls:
        hint = "if it has TLS, give rediss://"
    return BoardCheck("server", Level.PROBLEM, error.message, hint)


def server_findings(facts: RedisFacts) -> Iterator[BoardCheck]:
    """Yield findings about the server."""
    yield from _server(facts)
    yield from _rights(facts)
    yield from speed_findings(facts.speed)
    yield from _memory(facts.about)
    offset = f"the server's is {abs(facts.clock_offset_s):.1f} s {'ahead' if facts.clock_offset_s > 0 else 'behind'}"
    is_off = abs(facts.clock_offset_s) > _CLOCK_S
    yield _warning_if(is_off, "clock", offset, "leases do not depend on it, but certificates do")


def speed_findings(speed: Speed) -> Iterator[BoardCheck]:
    """Yield the speed of messages of a board or a queue."""
    trip = f"{_ms(speed.round_trip_s)}, the median of 20"
    remedy = "raise board.window, so that more fragments are on their way"
    yield _warning_if(speed.round_trip_s > _SLOW_S, "round trip", trip, remedy)
    if speed.bytes_per_s is not None:
        yield BoardCheck("speed", Level.OK, f"{size(speed.bytes_per_s)}/s, both ways together")
    if speed.refused_bytes is not None:
        text = f"{size(speed.refused_bytes)} do not go through: {speed.refusal}"
        hint = "raise the limit of the server (proto-max-bulk-len) or plan, or set board.max_fragment_mb below it"
        yield BoardCheck("largest message", Level.PROBLEM, text, hint)
    else:
        yield BoardCheck("largest message", Level.OK, f"{size(speed.largest_bytes)} go through")


def _certificate(found: Reach) -> BoardCheck:
    left_s = found.certificate_left_s
    if left_s is None:
        return BoardCheck("TLS", Level.OK, f"{found.tls_version}, the certificate is the host's")
    text = f"{found.tls_version}, the certificate is the host's and valid for {duration(left_s)}"
    return _warning_if(left_s < _CERTIFICATE_S, "TLS", text, "renew it: afterwards nobody can connect")


def _server(facts: RedisFacts) -> Iterator[BoardCheck]:
    title = f"{facts.server} {'.'.join(map(str, facts.version))}"
    if facts.version < OLDEST:
        yield BoardCheck("server", Level.PROBLEM, title, "a board needs Redis 6.2 or newer, or Valkey")
    elif facts.role != "master":
        yield BoardCheck(
            "server", Level.PROBLEM, f"{title}, a replica, which only reads", "give the address of the master"
        )
    elif facts.mode != "standalone":
        hint = "it works where one node has all slots; else give a server that is not a cluster"
        yield BoardCheck("server", Level.WARNING, f"{title}, {facts.mode}", hint)
    else:
        yield BoardCheck("server", Level.OK, title)


def _rights(facts: RedisFacts) -> Iterator[BoardCheck]:
    user = f"user {facts.user}" if facts.user else "this user"
    if facts.missing is None:
        yield BoardCheck("rights", Level.UNKNOWN, "the server does not say what this user may do", _RULES_HINT)
        return
    roles = [role for role, missing in facts.missing.items() if not missing]
    if not roles:
        role, missing = min(facts.missing.items(), key=lambda item: len(item[1]))
        text = f"{user} can be of no role; as {role} it may not {', '.join(missing)}"
        yield BoardCheck("rights", Level.PROBLEM, text, _RULES_HINT)
    elif facts.rules_server:
        text = f"{user} may do everything, also erase the server: so may all who have its password"
        yield BoardCheck("rights", Level.WARNING, text, _RULES_HINT)
    else:
        yield BoardCheck("rights", Level.OK, f"{user} can be {_listed(roles)}")


def _memory(about: Mapping[str, str] | None) -> Iterator[BoardCheck]:
    if about is None:
        hint = "ask as trainer, client or owner"
        yield BoardCheck("memory", Level.UNKNOWN, "this user may not ask for memory and persistence (INFO)", hint)
        return
    limit, used = int(about.get("maxmemory", 0)), int(about.get("used_memory", 0))
    policy = about.get("maxmemory_policy", "noeviction")
    text = f"{size(used)} used of {size(limit)}" if limit else f"{size(used)} used, no limit (maxmemory 0)"
    if limit and policy != "noeviction":
        text = f"{text}; when full, it deletes what tasks still need ({policy})"
        yield BoardCheck(
            "memory", Level.PROBLEM, text, "set maxmemory-policy noeviction: then it refuses, and both ends wait"
        )
    else:
        hint = "few or small tasks: window x seats x fragment size and two versions of weights must fit"
        yield _warning_if(limit > 0 and limit - used < _LITTLE_MEMORY, "memory", text, hint)
    yield _persistence(about)
    yield from _connections(about)


def _persistence(about: Mapping[str, str]) -> BoardCheck:
    if about.get("rdb_last_bgsave_status", "ok") != "ok" or about.get("aof_last_write_status", "ok") != "ok":
        hint = 'free its disk, or turn persistence off (save "", appendonly no): a board needs none'
        return BoardCheck(
            "persistence", Level.PROBLEM, "its last write to the disk failed: it may refuse messages", hint
        )
    if about.get("aof_enabled") == "1":
        text = "every fragment is written to the disk (appendonly), which a board does not need"
        return BoardCheck("persistence", Level.WARNING, text, "appendonly no: a trainer fills an emptied board again")
    return BoardCheck("persistence", Level.OK, "fragments are not logged to the disk")


def _connections(about: Mapping[str, str]) -> Iterator[BoardCheck]:
    most, now = int(about.get("maxclients", 0)), int(about.get("connected_clients", 0))
    if most:
        hint = "an actor takes one or two, a trainer up to four"
        yield _warning_if(most - now < _FEW_CONNECTIONS, "connections", f"{now} of {most}", hint)


def _warning_if(is_bad: bool, check: str, text: str, hint: str) -> BoardCheck:
    return BoardCheck(check, Level.WARNING, text, hint) if is_bad else BoardCheck(check, Level.OK, text)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


_COLOURS: Final = {Level.OK: GREEN, Level.WARNING: YELLOW, Level.PROBLEM: RED, Level.UNKNOWN: CYAN}


def print_findings(server: str, findings: Sequence[BoardCheck], as_json: bool) -> None:
    """Print the findings about ``server``, which has no password."""
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
            print(f"{start} {role.name} {role.rules(None, version)}")
