"""By which commands each role does what it does: for finding out whether a user of a server can be of a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rlexp.transport.boards.access import ACTOR, CLIENT, TRAINER

_TASK: Final = "rlexp:{rlexp-board-check}:"
"""Of a task that nobody announces."""
_NO_SCRIPT: Final = "0" * 40
_SEE: Final = "see the tasks"
_SEAT: Final = "take a seat"
_SEND: Final = "send fragments"
_WEIGHTS: Final = "read weights"
_ANNOUNCE: Final = "announce a task"
_RECEIVE: Final = "receive fragments"
_PUBLISH: Final = "publish weights and results"
_SUBMIT: Final = "submit and cancel a task"
_RESULTS: Final = "read results"

NEEDS: Final[Mapping[str, Sequence[str]]] = {
    ACTOR.name: (_SEE, _SEAT, _SEND, _WEIGHTS),
    TRAINER.name: (_SEE, _ANNOUNCE, _RECEIVE, _PUBLISH),
    CLIENT.name: (_SEE, _SUBMIT, _RESULTS),
}
"""What each role does, by its name."""
RULING_COMMANDS: Final = (("FLUSHALL",), ("CONFIG", "GET", "dir"))
"""What nobody needs who plays, trains or submits."""

_COMMANDS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    _SEE: [
        ("SMEMBERS", "rlexp:tasks"),
        ("HMGET", f"{_TASK}task", "name"),
        ("GET", f"{_TASK}trainer"),
        ("GET", f"{_TASK}figures"),
        ("HGETALL", f"{_TASK}seats"),
        ("TIME",),
    ],
    _SEAT: [
        ("EVALSHA", _NO_SCRIPT, "1", f"{_TASK}seats"),
        ("HSET", f"{_TASK}seats", "0", ""),
        ("HGET", f"{_TASK}epochs", "0"),
        ("HGET", f"{_TASK}got", "0"),
        ("HGET", f"{_TASK}banned", "0"),
        ("LLEN", f"{_TASK}in:0"),
    ],
    _SEND: [("RPUSH", f"{_TASK}in:0", "")],
    _WEIGHTS: [("HGET", f"{_TASK}blob:weights-1", "head")],
    _ANNOUNCE: [
        ("SCRIPT", "LOAD", ""),
        ("EVALSHA", _NO_SCRIPT, "2", f"{_TASK}task", f"{_TASK}epochs"),
        ("HSET", f"{_TASK}task", "name", ""),
        ("EXPIRE", f"{_TASK}task", "1"),
        ("SADD", "rlexp:tasks", ""),
        ("SREM", "rlexp:tasks", ""),
    ],
    _RECEIVE: [("LPOP", f"{_TASK}in:0", "1"), ("BLPOP", f"{_TASK}in:0", "1"), ("UNLINK", f"{_TASK}in:0")],
    _PUBLISH: [
        ("SET", f"{_TASK}trainer", ""),
        ("SET", f"{_TASK}figures", ""),
        ("HSET", f"{_TASK}got", "0", ""),
        ("HDEL", f"{_TASK}got", "0"),
        ("HSET", f"{_TASK}blob:weights-1", "head", ""),
        ("RENAME", f"{_TASK}blob:weights-1:1", f"{_TASK}blob:weights-1"),
        ("UNLINK", f"{_TASK}blob:weights-1"),
        ("RPUSH", f"{_TASK}rows", ""),
        ("LTRIM", f"{_TASK}rows", "0", "1"),
    ],
    _SUBMIT: [
        ("SCRIPT", "LOAD", ""),
        ("EVALSHA", _NO_SCRIPT, "1", f"{_TASK}task"),
        ("HSET", f"{_TASK}task", "name", ""),
        ("EXPIRE", f"{_TASK}task", "1"),
        ("SADD", "rlexp:tasks", ""),
    ],
    _RESULTS: [("LRANGE", f"{_TASK}rows", "0", "1"), ("HGET", f"{_TASK}blob:result", "head")],
}


def needed_commands(need: str) -> Sequence[tuple[str, ...]]:
    """Return the commands, and those of scripts, by which a role does one of its NEEDS."""
    return _COMMANDS[need]
