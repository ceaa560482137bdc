"""What each role may do on a Redis or Valkey that is a board, as access rules of the server's (ACL).

Commands within a script are checked against the rules of whoever runs it, so each role has the commands and keys that
its scripts use. Actors run the scripts that the server has, by their hash, and cannot give it others; trainers and
clients load them.
"""

from __future__ import annotations

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
    """A user of the server, and what it may do."""

    name: str
    keys: tuple[str, ...]
    """Patterns of keys with their rights, as Redis 7.0 reads them: ``%R~`` to read, ``%W~`` to write, ``%RW~`` both."""
    commands: tuple[str, ...]

    def rules(self, password: str, version: tuple[int, int] = FIRST_WITH_READ_ONLY_KEYS) -> str:
        """Return the rules of ``ACL SETUSER`` after the user's name; the password itself is not in them.

        Before FIRST_WITH_READ_ONLY_KEYS a key that may be read may also be written, with the commands of the role.
        """
        return self._rules(f"#{sha256(password.encode()).hexdigest()}", version)

    def template(self, version: tuple[int, int] = FIRST_WITH_READ_ONLY_KEYS) -> str:
        """Return the rules with ``PASSWORD_OF_...`` in place of the password."""
        return self._rules(f">PASSWORD_OF_{self.name.upper()}", version)

    def _rules(self, password: str, version: tuple[int, int]) -> str:
        keys = self.keys
        if version < FIRST_WITH_READ_ONLY_KEYS:
            keys = tuple(dict.fromkeys("~" + key.partition("~")[2] for key in keys))
        commands = (f"+{command}" for command in self.commands)
        return " ".join(["reset", "on", password, "resetchannels", *keys, "-@all", *commands])


ACTOR: Final = Role(
    "actor",
    (
        "%R~rlexp:tasks",
        "%R~rlexp:{*}:task",
        "%R~rlexp:{*}:trainer",
        "%R~rlexp:{*}:figures",
        "%R~rlexp:{*}:banned",
        "%R~rlexp:{*}:blob:weights-*",
        "%RW~rlexp:{*}:seats",
        "%RW~rlexp:{*}:epochs",
        "%RW~rlexp:{*}:got",
        "%W~rlexp:{*}:in:*",
    ),
    (*_CONNECTION, "evalsha", "get", "hget", "hmget", "hgetall", "smembers", "llen", "hset", "hdel", "rpush"),
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
"""Trains: it has everything of a board's own keys."""
CLIENT: Final = Role(
    "client",
    ("%R~rlexp:*", "%RW~rlexp:tasks", "%RW~rlexp:{*}:task", "%RW~rlexp:{*}:file"),
    (*_CONNECTION, *_READING, "evalsha", "script|load", "info", "hset", "sadd", "srem", "expire"),
)
"""Submits and cancels tasks, reads how they do and what they result in."""
ROLES: Final = (ACTOR, TRAINER, CLIENT)
