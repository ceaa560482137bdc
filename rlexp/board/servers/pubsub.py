"""Google Cloud Pub/Sub as a queue: one topic for all tasks, and for each task a subscription of its trainer.

Never run at Google: tested against a server with the same gRPC interface. Like any carrier, it may lose, repeat and
reorder. Credentials are Google's default ones; ``PUBSUB_EMULATOR_HOST`` names an emulator instead.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import grpc
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.pubsub_v1 import PublisherClient, SubscriberClient

from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.servers.board import check_sizes

EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
_LOST: Final = (
    exceptions.ServerError,
    exceptions.TooManyRequests,
    exceptions.Aborted,
    exceptions.Cancelled,
    auth_exceptions.TransportError,
    OSError,
)
MAX_BYTES: Final = 9_000_000
"""Most bytes of a message. A request has 10 MB at most, and a message's attributes and lengths are a part of it."""
_REQUEST_BYTES: Final = 9_500_000
_REQUEST_MESSAGES: Final = 1000
"""Most messages of one request, by the service's limit."""
_BUFFERED: Final = 64
"""Most messages that wait here for their receiver; more wait at the service."""
_ANSWER_S: Final = 10.0
_PULL_S: Final = 20.0
"""Seconds that one request waits for messages; below ACK_DEADLINE_S."""
ACK_DEADLINE_S: Final = 60
"""Seconds after which an unconfirmed message is delivered again; the trainer confirms messages in its memory."""
_RETENTION_S: Final = 600
"""The shortest retention of the service: older messages would be sent again by their actors in any case."""
_EXPIRES_S: Final = 86_400
"""The shortest expiry of the service: a dead trainer's subscription is removed after a day."""
_JOIN_S: Final = 5.0


class PubSubCarrier:
    """An end of a topic for one task; see :class:`~rlexp.board.servers.board.Carrier`. Owns its connections.

    The receiving end owns the task's subscription. The first ``receive`` creates it, a later one does so again if it
    was removed, and ``close`` deletes it.
    """

    max_bytes = MAX_BYTES

    def __init__(self, project: str, topic: str, task_id: str) -> None:
        """Connect with the first call."""
        self._topic = f"projects/{project}/topics/{topic}"
        self._task_id = task_id
        self._lock = threading.Lock()
        self._publisher: Any = None
        self._reader: _TopicReader | None = None
        self._is_closed = False

    def send(self, messages: Sequence[bytes]) -> None:
        check_sizes(messages, MAX_BYTES)
        with translated_errors(self._topic):
            with self._lock:
                if self._publisher is None:
                    self._publisher = connected_client(PublisherClient)
            for batch in batches(messages):
                entries = [{"data": message, "attributes": {"task": self._task_id}} for message in batch]
                request = {"topic": self._topic, "messages": entries}
                self._publisher.publish(request=request, retry=None, timeout=_ANSWER_S)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        if self._reader is None:
            self._reader = _TopicReader(self._topic, self._task_id)
        return self._reader.take(limit, timeout_s)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._reader is not None:
            self._reader.close()
        if self._publisher is not None:
            self._publisher.transport.close()


class _TopicReader:
    """A thread that waits at the service for messages, so that ``receive`` can give up without losing any."""

    def __init__(self, topic: str, task_id: str) -> None:
        self._topic, self._task_id = topic, task_id
        self._subscription = f"{topic.partition('/topics/')[0]}/subscriptions/rlexp-{task_id}"
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._error: BoardError | None = None
        self._is_closing = False
        with translated_errors(topic):
            self._client = connected_client(SubscriberClient)
            self._subscribe()
        self._thread = threading.Thread(target=self._run, name="pubsub", daemon=True)
        self._thread.start()

    def take(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages; raises each error of the thread once."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._messages) or self._error is not None, timeout_s)
            if self._error is not None and not self._messages:
                error, self._error = self._error, None
                self._changed.notify_all()  # it tries again now: the caller decides when
                raise error
            taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Delete the subscription, and with it its waiting messages."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        with suppress(exceptions.GoogleAPICallError, auth_exceptions.GoogleAuthError, OSError):
            name = {"subscription": self._subscription}
            self._client.delete_subscription(request=name, retry=None, timeout=_ANSWER_S)
        self._client.transport.close()  # this also ends a waiting request
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while (room := self._wait_for_room()) > 0:
            try:
                with translated_errors(self._topic):
                    self._pull(room)
            except BoardError as error:
                with self._changed:
                    self._error = None if self._is_closing else error
                    self._changed.notify_all()

    def _wait_for_room(self) -> int:
        """Return how many messages may be fetched; 0 if the thread must end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closing or (self._error is None and len(self._messages) < _BUFFERED)
            )
            return 0 if self._is_closing else _BUFFERED - len(self._messages)

    def _pull(self, room: int) -> None:
        request = {"subscription": self._subscription, "max_messages": room}
        try:
            answer = self._client.pull(request=request, retry=None, timeout=_PULL_S)
        except exceptions.DeadlineExceeded:
            return  # no message arrived
        except exceptions.NotFound:
            if not self._is_closing:
                self._subscribe()
            return
        received = answer.received_messages
        with self._changed:
            self._messages.extend(each.message.data for each in received)
            self._changed.notify_all()
        if received:
            acknowledged = {"subscription": self._subscription, "ack_ids": [each.ack_id for each in received]}
            self._client.acknowledge(request=acknowledged, retry=None, timeout=_ANSWER_S)

    def _subscribe(self) -> None:
        request = {
            "name": self._subscription,
            "topic": self._topic,
            "filter": f'attributes.task = "{self._task_id}"',
            "ack_deadline_seconds": ACK_DEADLINE_S,
            "message_retention_duration": {"seconds": _RETENTION_S},
            "expiration_policy": {"ttl": {"seconds": _EXPIRES_S}},
        }
        with suppress(exceptions.AlreadyExists):
            self._client.create_subscription(request=request, retry=None, timeout=_ANSWER_S)


def batches(messages: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield ``messages`` in groups that fit into requests, in order."""
    batch: list[bytes] = []
    num_bytes = 0
    for message in messages:
        if batch and (num_bytes + len(message) > _REQUEST_BYTES or len(batch) == _REQUEST_MESSAGES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(message)
        num_bytes += len(message) + 200  # the attribute, and the lengths of both
    if batch:
        yield batch


def connected_client(kind: Any) -> Any:
    """Return a client of ``kind``: of the emulator, if one is named, or of Google, with the default credentials."""
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if not emulator:
        return kind()
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return kind(transport=kind.get_transport_class("grpc")(channel=grpc.insecure_channel(emulator, options)))


@contextmanager
def translated_errors(topic: str) -> Iterator[None]:
    """Raise BoardLostError for temporary errors, and BoardError for errors that the user must correct."""
    try:
        yield
    except exceptions.NotFound as error:
        name = topic.rpartition("/")[2]
        raise BoardError(f"there is no {topic}", f"create it: gcloud pubsub topics create {name}") from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise BoardError(
            f"Pub/Sub does not allow these credentials to use {topic}",
            "an actor needs roles/pubsub.publisher on the topic, a trainer roles/pubsub.editor in the project",
        ) from error
    except auth_exceptions.DefaultCredentialsError as error:
        raise BoardError(
            "there are no credentials for Pub/Sub",
            "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS with a service account's file",
        ) from error
    except _LOST as error:
        raise BoardLostError(f"Pub/Sub cannot be reached: {type(error).__name__}") from error
    except (exceptions.GoogleAPICallError, auth_exceptions.GoogleAuthError) as error:
        raise BoardError(f"Pub/Sub answers with an error: {type(error).__name__}") from error
