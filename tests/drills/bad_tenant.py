"""``python -m tests.drills.bad_tenant URL ROLE SEED SECONDS KEY...``: writes anything into what a role may write.

It does what no script of ours does, with the rights of a role alone. It ends a task in no way that its role is for: it
writes no state in which a task is over, and no lease that could be an actor's.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from rlexp.board.messages.address import parse_address
from rlexp.board.servers.redis_queue import RedisConnection

PAUSE_S = 0.005
Words = tuple[bytes | str | int, ...]
COMMANDS: dict[str, int] = {
    **dict.fromkeys(("UNLINK", "DEL", "LPOP", "RPOP", "INCR", "PERSIST"), 0),
    **dict.fromkeys(("SET", "SADD", "SREM", "RPUSH", "LPUSH", "HDEL", "EXPIRE", "PEXPIRE", "RENAME", "APPEND"), 1),
    **dict.fromkeys(("COPY", "PFADD", "GETSET"), 1),
    **dict.fromkeys(("HSET", "LTRIM", "ZADD", "HINCRBY", "SETRANGE", "SETBIT"), 2),
    "XADD": 3,
}
"""Commands that write a key, and how many arguments they have behind it."""
FIELDS = (
    *("name", "status", "reason", "seats", "announced", "submitted", "weights", "description", "file"),
    *("0", "1", "2"),
)
TEXTS = (
    *(b"", b"x", b"NaN", b"Infinity", b"-1e400", b"1e400", b"true", b"null", b"QUEUED", b"\x1b[31m", b"[" * 10_000),
    *(b"[]", b"{}", b'{"a":1e400}', b'{"protocol":true}', b'{"a":"\\ud800"}', b"0 0", b"0 0 ", b"9" * 400),
    b"z" * 100_000,
)


class Tenant:
    """Owns a connection with the rights of one role."""

    def __init__(self, url: str, rng: random.Random, keys: Sequence[str]) -> None:
        self.done: Counter[str] = Counter()
        """By command and key: how often it was answered without an error."""
        self.refused = 0
        self._rng = rng
        connection = RedisConnection(parse_address(url))
        wanted = [(command, key) for command in COMMANDS for key in keys]
        may = connection.may([[command, key, *["1"] * COMMANDS[command]] for command, key in wanted])
        connection.close()
        self.allowed = [pair for pair, is_allowed in zip(wanted, may, strict=True) if is_allowed]
        self._client: Any = redis.Redis.from_url(url)

    def write(self) -> None:
        """Write once, anywhere."""
        command, key = self._rng.choice(self.allowed)
        words: Words = (command, key, *(self._argument(command, place) for place in range(COMMANDS[command])))
        try:
            self._client.execute_command(*words)
            self.done[f"{command} {key.rpartition(':')[2]}"] += 1
        except redis.exceptions.ResponseError:
            self.refused += 1

    def _argument(self, command: str, place: int) -> bytes | str | int:
        rng = self._rng
        if command in ("EXPIRE", "PEXPIRE"):
            return rng.choice((-1, 0, 1, 600, 10**9))
        if command in ("HSET", "HDEL", "HINCRBY") and place == 0 and rng.random() < 0.8:
            return rng.choice(FIELDS)
        return rng.choice((self._text, self._number, self._bytes, self._lease))()

    def _text(self) -> bytes:
        return self._rng.choice(TEXTS)

    def _number(self) -> bytes:
        rng = self._rng
        return b"%d" % (rng.choice((-1, 1)) * rng.randrange(10 ** rng.choice((1, 3, 9, 13, 15, 40))))

    def _bytes(self) -> bytes:
        return self._rng.randbytes(self._rng.choice((1, 8, 64, 4096)))

    def _lease(self) -> bytes:
        """Return what has the form of a lease; one in twenty has ended, and an epoch that may be the newest."""
        rng = self._rng
        if rng.random() < 0.05:
            return b"1 %d bad/%d" % (time.time() * 1000 + rng.randrange(1000), rng.randrange(9))
        return b"%b %b \x07%b" % (self._number(), self._number(), self._bytes()[:9])


def main() -> None:
    """Write until the time is over; print what was done as JSON."""
    url, role, seed, seconds, *keys = sys.argv[1:]
    tenant = Tenant(url, random.Random(f"{role} {seed}"), keys)
    ends_s = time.monotonic() + float(seconds)
    while time.monotonic() < ends_s:
        with suppress(redis.exceptions.ConnectionError):
            tenant.write()
        time.sleep(PAUSE_S)
    print(json.dumps({"done": tenant.done, "refused": tenant.refused}))


if __name__ == "__main__":
    main()
