"""Redis or Valkey as a queue: a list for each task. Also the connection of boards of that kind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha1
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rlexp.board.messages.address import BoardAddress, tls_problem
from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.servers.board import check_sizes

Command = Sequence[bytes | str | int]
"""The name of a command, and its arguments."""
MAX_BYTES: Final = 4 << 20
"""Most bytes of a message: far below the limit of Redis, so that none delays others for long."""
MOST_TAKEN_BYTES: Final = 64 << 20
"""Bytes of messages after which no more are taken at once."""
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0
_BLOCK_S: Final = 5.0
"""Seconds of a blocking call, which must end before the connection counts as lost."""

TAKE: Final = """
-- KEYS: list   ARGV: most messages, most bytes of one, most bytes of all; longer ones become empty
local taken, total = {}, 0
for _ = 1, tonumber(ARGV[1]) do
  local message = total < tonumber(ARGV[3]) and redis.call('LPOP', KEYS[1])
  if not message then break end
  if #message > tonumber(ARGV[2]) then message = '' end
  taken[#taken + 1] = message
  total = total + #message
end
return taken"""


class WrongTypeError(BoardError):
    """Raised if a key has another type than the command needs: another program has written there."""


class RedisConnection:
    """A pool of connections to one server, made when they are needed; its owner closes it.

    The client library's own retries are off, as they would hide a lost server for seconds.
    """

    def __init__(self, address: BoardAddress, scripts: Sequence[str] = ()) -> None:
        """``scripts``: all that :meth:`run` is given; they are loaded together, also for users who may not load any."""
        self._address = address
        self._scripts = scripts
        options: dict[str, Any] = {}
        if address.scheme == "rediss":
            options = {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
            options |= {"ssl_ca_certs": address.ca_file} if address.ca_file else {}
        self._client: Any = redis.Redis(
            host=address.host,
            port=address.port,
            db=address.database,
            username=address.username or None,
            password=address.password or None,
            protocol=2,
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=_ANSWER_S,
            retry=Retry(NoBackoff(), 0),
            **options,
        )

    def call(self, *command: bytes | str | int) -> Any:
        """Return the server's answer to a command, in bytes; raises BoardLostError and BoardError."""
        with self._translated():
            return self._client.execute_command(*command)

    def call_all(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to several commands that take one round trip; raises for the first that failed."""
        with self._translated():
            return self._answers(commands, raise_on_error=True)

    def read_all(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers like ``call_all``; a WrongTypeError in place of an answer for a key of another type."""
        with self._translated():
            answers = self._answers(commands)
            _raise_others(answers)
            return [WrongTypeError(str(each)) if isinstance(each, Exception) else each for each in answers]

    def may(self, commands: Sequence[Sequence[str]]) -> list[bool]:
        """Return for each command whether this user may run it; none is run. Raises BoardError if that is unknown."""
        # The server checks the rights of a transaction's commands before it is discarded. First comes the right
        # to transactions itself. Names are in bytes, or the client library would seek a command's answer in b"QUEUED".
        self.call_all([(b"MULTI",), (b"DISCARD",)])
        with self._translated():
            asked: list[Sequence[str]] = [("MULTI",), *commands, ("DISCARD",)]
            _, *answers, _ = self._answers([(name.encode(), *arguments) for name, *arguments in asked])
            return [not isinstance(answer, redis.exceptions.NoPermissionError) for answer in answers]

    def run(self, script: str, keys: Sequence[str], arguments: Command, before: Sequence[Command] = ()) -> Any:
        """Return the result of a Lua script; the commands ``before`` it share the round trip.

        A command ``before`` on a key of another type does nothing, as if it were lost on its way.
        """
        sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        evaluated: Command = ["EVALSHA", sha, len(keys), *keys, *arguments]
        with self._translated():
            *answers, result = self._answers([*before, evaluated])
            _raise_others(answers)
            if isinstance(result, redis.exceptions.NoScriptError):
                # A server forgets scripts when it restarts.
                self.load_scripts()
                return self._client.execute_command(*evaluated)
            if isinstance(result, Exception):
                raise result
            return result

    def load_scripts(self) -> None:
        """Give the server all scripts; raises BoardLostError if only another user may, as for actors."""
        with self._translated():
            try:
                self.call_all([("SCRIPT LOAD", script) for script in self._scripts])
            except BoardError as error:
                if not isinstance(error.__cause__, redis.exceptions.NoPermissionError):
                    raise
                raise BoardLostError(
                    f"the board {self._address} does not have the scripts of this rlexp yet; its trainer loads them",
                    "the trainer and its actors need the same version of rlexp",
                ) from error

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._client.close()
        self._client.connection_pool.disconnect()

    def _answers(self, commands: Sequence[Command], *, raise_on_error: bool = False) -> list[Any]:
        """Return the answers of one round trip, or errors in their places."""
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = pipeline.execute(raise_on_error=raise_on_error)
        return answers

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError) as error:
            raise BoardError(
                f"the board {self._address} refuses the password or user name",
                "set RLEXP_BOARD_PASSWORD, or give redis://USER:PASSWORD@HOST:PORT",
            ) from error
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            if problem := tls_problem(self._address, error):
                raise problem from error
            message = f"the board {self._address} cannot be reached: {_short(error)}"
            raise BoardLostError(message, "is it running? rlexp board check examines the way there") from error
        except (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError) as error:
            raise BoardLostError(f"the board {self._address} takes nothing now: {_short(error)}") from error
        except redis.exceptions.NoPermissionError as error:
            raise BoardError(
                f"the board {self._address} does not allow this user to do that: {_short(error)}",
                "the rights that each role needs are in docs/board.md",
            ) from error
        except redis.exceptions.RedisError as error:
            if _is_of_wrong_type(error):
                raise WrongTypeError(f"the board {self._address} has a key of another type: {_short(error)}") from error
            raise BoardError(
                f"the board {self._address} answers with an error: {_short(error)}", "it needs Redis 6.2 or Valkey"
            ) from error


class RedisCarrier:
    """The list of one task; see :class:`~rlexp.board.servers.board.Carrier`. Its connection belongs to the board."""

    max_bytes = MAX_BYTES

    def __init__(self, connection: RedisConnection, key: str) -> None:
        self._connection, self._key = connection, key

    def send(self, messages: Sequence[bytes]) -> None:
        if messages:
            with suppress(WrongTypeError):  # lost: they are sent again, and the receiver removes the key
                self._connection.call(*self.push(messages))

    def push(self, messages: Sequence[bytes]) -> tuple[bytes | str, ...]:
        """Return the command that gives ``messages`` to the list."""
        check_sizes(messages, MAX_BYTES)
        return ("RPUSH", self._key, *messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        call, ends_at, messages = self._connection.call, time.monotonic() + timeout_s, list[bytes]()
        try:
            messages += self._take(limit)
            while not messages and (left_s := ends_at - time.monotonic()) > 0:
                if first := call("BLPOP", self._key, f"{max(min(left_s, _BLOCK_S), 0.001):.3f}"):
                    message = first[1] if len(first[1]) <= MAX_BYTES else b""
                    messages = [message, *(self._take(limit - 1) if limit > 1 else ())]
        except WrongTypeError:  # nobody can send until it is gone
            call("UNLINK", self._key)
        return messages

    def _take(self, limit: int) -> list[bytes]:
        """Return the next messages of the list; one that is too long, as any user may make it, is empty."""
        taken: list[bytes] = self._connection.run(TAKE, [self._key], [limit, MAX_BYTES, MOST_TAKEN_BYTES])
        return taken

    def close(self) -> None:
        """Do nothing: see :meth:`RedisConnection.close`."""


def _raise_others(answers: Sequence[Any]) -> None:
    """Raise the first error among ``answers`` except wrong key types."""
    for answer in answers:
        if isinstance(answer, Exception) and not _is_of_wrong_type(answer):
            raise answer


def _is_of_wrong_type(error: Exception) -> bool:
    return isinstance(error, redis.exceptions.ResponseError) and "WRONGTYPE" in str(error)


def _short(error: Exception) -> str:
    """Return the reason of an error: the operating system's if it is one, else the first line."""
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
