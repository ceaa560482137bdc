"""The access rules (ACL) of each role on a Redis or Valkey that is a board, and the commands that it needs.

The server checks commands in a script against the rules of the caller, so each role has the commands and keys of its
scripts. It can use them without the scripts too. So a role has only the one command with which its scripts write a
key: it cannot change the key's type or remove it. Actors run the server's scripts by hash and cannot load others;
trainers and clients load them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

OLDEST: Final = (6, 2)
"""The first version of Redis that can be a board."""
FIRST_WITH_READ_ONLY_KEYS: Final = (7, 0)
"""The first version of Redis that tells keys that may be read from keys that may be written."""
_CONNECTION: Final = ("auth", "hello", "ping", "select", "time", "multi", "discard", "acl|whoami")
_READING: Final = ("get", "hget", "hmget", "hvals", "hgetall", "exists", "smembers", "llen", "lrange", "lindex")
_WRITING: Final = ("set", "hset", "hdel", "sadd", "srem", "rpush", "ltrim", "expire", "unlink")


@dataclass(frozen=True)
class Role:
    """A user of the server, and its rights."""

    name: str
    keys: tuple[str, ...]
    """Patterns of keys with their rights, as Redis 7.0 reads them: ``%R~`` to read, ``%W~`` to write, ``%RW~`` both."""
    commands: tuple[str, ...]
    """Commands for all of these keys, each within its rights."""
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further keys, each with the only commands that are allowed for it."""

    def rules(self, password: str, version: tuple[int, int] = FIRST_WITH_READ_ONLY_KEYS) -> str:
        """Return the rules of ``ACL SETUSER`` after the user's name, without the password itself.

        Before FIRST_WITH_READ_ONLY_KEYS, a key that may be read may also be written, with all commands of the role.
        """
        return self._rules(f"#{sha256(password.encode()).hexdigest()}", version)

    def template(self, version: tuple[int, int] = FIRST_WITH_READ_ONLY_KEYS) -> str:
        """Return the rules with ``PASSWORD_OF_...`` in place of the password."""
        return self._rules(f">PASSWORD_OF_{self.name.upper()}", version)

    def _rules(self, password: str, version: tuple[int, int]) -> str:
        begin = ["reset", "on", password, "resetchannels"]
        if version < FIRST_WITH_READ_ONLY_KEYS:
            all_keys = (*self.keys, *(key for key, _ in self.more))
            keys = dict.fromkeys("~" + key.partition("~")[2] for key in all_keys)
            commands = dict.fromkeys((*self.commands, *(command for _, own in self.more for command in own)))
            return " ".join([*begin, *keys, "-@all", *_added(commands)])
        more = (f"({' '.join([key, *_added(commands)])})" for key, commands in self.more)
        return " ".join([*begin, *self.keys, "-@all", *_added(self.commands), *more])


def _added(commands: Iterable[str]) -> list[str]:
    return [f"+{command}" for command in commands]


ACTOR: Final = Role(
    "actor",
    (
        "%R~rlexp:tasks",
        "%R~rlexp:{*}:task",
        "%R~rlexp:{*}:trainer",
        "%R~rlexp:{*}:figures",
        "%R~rlexp:{*}:banned",
        "%R~rlexp:{*}:blob:weights-*",
        "%R~rlexp:{*}:epochs",
        "%R~rlexp:{*}:got",
        "%RW~rlexp:{*}:seats",
    ),
    (*_CONNECTION, "evalsha", "get", "hget", "hmget", "hgetall", "smembers", "hset"),
    (("%W~rlexp:{*}:in:0", ("llen", "rpush")),),
)
"""Plays: takes seats, sends fragments, reads tasks and weights."""
TRAINER: Final = Role(
    "trainer",
    ("%RW~rlexp:*",),
    (
        *_CONNECTION,
        *_READING,
        *_WRITING,
        *("evalsha", "script|load", "info", "rename", "lpop", "blpop"),
    ),
)
"""Trains: it has all rights on a board's own keys."""
CLIENT: Final = Role(
    "client",
    ("%R~rlexp:*",),
    (*_CONNECTION, *_READING, "evalsha", "script|load", "info"),
    (("%W~rlexp:tasks", ("sadd",)), ("%RW~rlexp:{*}:task", ("evalsha", "hset", "expire"))),
)
"""Submits and cancels tasks, reads their state and their results."""
ROLES: Final = (ACTOR, TRAINER, CLIENT)
_TASK: Final = "rlexp:{rlexp-board-check}:"
"""A task id that nobody announces."""
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
"""The needs of each role, by name."""
RULING_COMMANDS: Final = (("FLUSHALL",), ("CONFIG", "GET", "dir"))
"""Commands that nobody needs to play, train or submit."""
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
    """Return the commands, with those in scripts, that a role needs for one of its NEEDS."""
    return _COMMANDS[need]
