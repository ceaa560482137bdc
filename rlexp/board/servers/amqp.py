"""RabbitMQ as a queue: one for each task. Its trainer declares it, and it is removed some minutes after the trainer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pika
from pika import exceptions

from rlexp.board.messages.address import QUEUE_PASSWORD_VARIABLE, QueueAddress, tls_context, tls_problem
from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.servers.carriers import ServedConnection, SessionCarrier

MAX_BYTES: Final = 4 << 20
_PREFETCH: Final = 256
"""Most messages that wait here for their receiver; more wait at the server."""
_EXPIRES_S: Final = 300
"""Seconds after which a queue that no trainer reads is removed; actors send its messages again."""
_QUEUE_BYTES: Final = 64 << 20
"""Most bytes of a queue. A full one drops new messages, which their sender keeps until the trainer has them."""
_CONNECT_S: Final = 5.0
_HEARTBEAT_S: Final = 20
_ANSWER_S: Final = 10.0
_LOOK_S: Final = 5.0
_GUEST: Final = "guest"

# The caller gets each error; without this handler, the library's logger would also print it.
logging.getLogger("pika").addHandler(logging.NullHandler())


class AmqpCarrier(SessionCarrier):
    """The queue of one task; see ``Carrier``. An end that only sends declares nothing."""

    def __init__(self, address: QueueAddress, task_id: str) -> None:
        super().__init__(partial(_AmqpConnection, address, f"rlexp.{task_id}"), MAX_BYTES)


class _AmqpConnection(ServedConnection[tuple[int, bytes]]):
    """One connection. The client library allows one thread to use it, which is this session's own."""

    def __init__(self, address: QueueAddress, queue: str) -> None:
        super().__init__(address)
        self._queue = queue
        self._connection: Any = None
        self._channel: Any = None
        self._is_consuming = False
        self._is_blocked = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="rabbitmq", daemon=True)
        self._thread.start()

    def check(self) -> None:
        with self._changed:
            self._wait_until(lambda: self._channel is not None, _ANSWER_S)
            if self._is_blocked:
                raise BoardLostError(f"the queue {self._address} takes nothing now: its memory or disk is full")

    def send(self, messages: Sequence[bytes]) -> None:
        if messages:
            self._call(partial(self._publish, messages))

    def take(self, limit: int, timeout_s: float) -> list[bytes]:
        if not self._is_consuming:
            self._is_consuming = True
            self._call(self._consume)
        with self._changed:
            taken = self._take(limit, timeout_s)
        if taken:
            self._call(partial(self._channel.basic_ack, taken[-1][0], multiple=True))
        return [message for _, message in taken]

    def close(self) -> None:
        self._is_closing = True
        with suppress(BoardError):
            self._call(lambda: None)
        self._thread.join(_ANSWER_S)

    def _call(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the thread."""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.add_callback_threadsafe(callback)
        except exceptions.AMQPError as error:
            raise BoardLostError(f"the queue {self._address} cannot be reached: the connection has ended") from error

    def _run(self) -> None:
        try:
            connection = pika.BlockingConnection(_parameters(self._address))
            with suppress(exceptions.ConnectionWrongStateError):  # raised if it was closed meanwhile
                self._serve(connection)
                connection.close()
        except Exception as error:  # errors of the client library, of TLS, and of the operating system
            self._end(_translated(self._address, error))
        else:
            self._end(BoardLostError(f"the connection with the queue {self._address} has ended"))

    def _serve(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(lambda *_: setattr(self, "_is_blocked", True))
        connection.add_on_connection_unblocked_callback(lambda *_: setattr(self, "_is_blocked", False))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        with self._changed:
            self._connection, self._channel = connection, channel
            self._changed.notify_all()
        while not self._is_closing:
            connection.process_data_events(time_limit=_LOOK_S)
        connection.process_data_events(time_limit=0)

    def _publish(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            self._channel.basic_publish("", self._queue, message)

    def _consume(self) -> None:
        arguments = {
            "x-expires": 1000 * _EXPIRES_S,
            "x-max-length-bytes": _QUEUE_BYTES,
            "x-overflow": "reject-publish",
        }
        # Durable, for servers that refuse others; its messages are in memory only.
        self._channel.queue_declare(self._queue, durable=True, arguments=arguments)
        self._channel.add_on_cancel_callback(self._on_cancel)
        self._channel.basic_consume(self._queue, self._on_message)

    def _on_message(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        with self._changed:
            self._arrived.append((method.delivery_tag, body))
            self._changed.notify_all()

    def _on_cancel(self, _method: Any) -> None:
        raise exceptions.ChannelClosed(404, "the queue was removed")


def _parameters(address: QueueAddress) -> Any:
    user = address.username or _GUEST
    password = address.password or (_GUEST if user == _GUEST else "")
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.path or "/",
        credentials=pika.PlainCredentials(user, password),
        ssl_options=pika.SSLOptions(tls_context(address), address.host) if address.has_tls else None,
        connection_attempts=1,
        socket_timeout=_CONNECT_S,
        stack_timeout=_ANSWER_S,
        heartbeat=_HEARTBEAT_S,
        tcp_options={"TCP_USER_TIMEOUT": int(1000 * _ANSWER_S)},
    )


def _translated(address: QueueAddress, error: Exception) -> BoardError:
    code = getattr(error, "reply_code", 0)
    login = (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError)
    if isinstance(error, BoardError):
        return error
    if found := tls_problem(address, error):
        return found
    if isinstance(error, login) or (code == 403 and isinstance(error, exceptions.ConnectionClosed)):
        return BoardError(
            f"the queue {address} refuses the password or user name",
            f"set {QUEUE_PASSWORD_VARIABLE}, or give {address.scheme}://USER:PASSWORD@HOST",
        )
    if isinstance(error, exceptions.ProbableAccessDeniedError) or code in (403, 530):
        return BoardError(
            f"the queue {address} does not allow this user to do that",
            "actors must be able to write to the default exchange, trainers to configure and read queues rlexp.*",
        )
    if code == 406:
        return BoardError(f"the queue {address} has a queue of this name of another kind", "remove it at the server")
    return BoardLostError(f"the queue {address} cannot be reached: {_short(error)}")


def _short(error: BaseException) -> str:
    """Return the operating system's reason if there is one, else the kind of the error."""
    inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
    for found in (error, inner, error.__cause__, error.__context__):
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
    return type(inner).__name__
