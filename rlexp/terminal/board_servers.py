"""What ``rlexp board serve`` prints: what trainers, actors and clients type."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from rlexp.board.servers.serving import RoleFiles
from rlexp.terminal.lines import aligned, visible
from rlexp.text import size


@dataclass(frozen=True)
class ServedBoard:
    """A board that has just been started."""

    title: str
    """The program and its version."""
    url: str
    """By which others reach it, without a password."""
    is_local: bool
    """Whether only this machine reaches it."""
    authority: Path | None
    """The certificates that others need to trust; None where their system's do."""
    files: RoleFiles
    max_memory: int
    problem: str
    """Why this machine itself cannot reach it by that address; empty where it can."""


def print_served(board: ServedBoard, as_json: bool) -> None:
    """Print what trainers, actors and clients type; nothing of it is secret, the files are."""
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
