"""A server of Pub/Sub's gRPC interface on loopback, as far as carriers use it, which can lose and repeat messages."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.pubsub_v1 import types

_WAIT_S = 0.05
_LARGEST_REQUEST = 10_000_000
"""As at Google."""


class Subscription:
    """What waits for a subscriber, and what was delivered and not acknowledged."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.waiting: deque[Any] = deque()
        self.delivered: dict[str, tuple[float, Any]] = {}

    def is_for(self, message: Any) -> bool:
        wanted = self.request.filter
        return not wanted or wanted == f'attributes.task = "{message.attributes.get("task", "")}"'


class PubSubServer:
    """Topics and subscriptions in memory; ``address`` is for PUBSUB_EMULATOR_HOST."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.topics = {"projects/p/topics/t"}
        self.subscriptions: dict[str, Subscription] = {}
        self.failure: grpc.StatusCode | None = None
        """What every call is answered with, if anything."""
        self.loses = False
        self.repeats = False
        self.loses_acknowledgements = False
        self.publish_requests: list[list[int]] = []
        """The sizes of the messages of each request."""
        self.address = ""
        self._clock = clock
        self._changed = threading.Condition()
        self._ids = itertools.count()
        options = [("grpc.max_receive_message_length", _LARGEST_REQUEST)]
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
        self._server.add_generic_rpc_handlers((self._handlers("Publisher"), self._handlers("Subscriber")))

    def start(self) -> None:
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self.failure = grpc.StatusCode.UNAVAILABLE  # ends the calls that wait
        self._server.stop(None).wait(10.0)

    def num_unacknowledged(self) -> int:
        with self._changed:
            return sum(len(each.waiting) + len(each.delivered) for each in self.subscriptions.values())

    def _handlers(self, service: str) -> grpc.GenericRpcHandler:
        methods: dict[str, list[tuple[str, Any, Any, Any]]] = {
            "Publisher": [("Publish", self._publish, types.PublishRequest, types.PublishResponse)],
            "Subscriber": [
                ("Pull", self._pull, types.PullRequest, types.PullResponse),
                ("Acknowledge", self._acknowledge, types.AcknowledgeRequest, None),
                ("CreateSubscription", self._create, types.Subscription, types.Subscription),
                ("DeleteSubscription", self._delete, types.DeleteSubscriptionRequest, None),
            ],
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=asked.deserialize,
                response_serializer=(lambda _: b"") if answered is None else answered.serialize,
            )
            for name, method, asked, answered in methods[service]
        }
        return grpc.method_handlers_generic_handler(f"google.pubsub.v1.{service}", handlers)

    def _publish(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(context, request.topic in self.topics)
        with self._changed:
            self.publish_requests.append([len(message.data) for message in request.messages])
            copies = 0 if self.loses else 2 if self.repeats else 1
            for message, subscription in itertools.product(request.messages, self.subscriptions.values()):
                if subscription.is_for(message):
                    subscription.waiting.extend([message] * copies)
            self._changed.notify_all()
        return types.PublishResponse(message_ids=[str(next(self._ids)) for _ in request.messages])

    def _create(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(context, request.topic in self.topics)
        with self._changed:
            if request.name in self.subscriptions:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "it exists")
            self.subscriptions[request.name] = Subscription(request)
        return request

    def _delete(self, request: Any, context: grpc.ServicerContext) -> None:
        self._check(context, request.subscription in self.subscriptions)
        with self._changed:
            del self.subscriptions[request.subscription]

    def _acknowledge(self, request: Any, context: grpc.ServicerContext) -> None:
        self._check(context, request.subscription in self.subscriptions)
        with self._changed:
            delivered = self.subscriptions[request.subscription].delivered
            for ack_id in () if self.loses_acknowledgements else request.ack_ids:
                delivered.pop(ack_id, None)

    def _pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        while context.is_active():
            self._check(context, request.subscription in self.subscriptions)
            with self._changed:
                subscription = self.subscriptions[request.subscription]
                self._take_back(subscription)
                if subscription.waiting:
                    return self._deliver(subscription, request.max_messages)
                self._changed.wait(_WAIT_S)
        return types.PullResponse()

    def _take_back(self, subscription: Subscription) -> None:
        for ack_id, (due_s, message) in list(subscription.delivered.items()):
            if self._clock() >= due_s:
                del subscription.delivered[ack_id]
                subscription.waiting.append(message)

    def _deliver(self, subscription: Subscription, limit: int) -> Any:
        received: list[Any] = []
        due_s = self._clock() + subscription.request.ack_deadline_seconds
        while subscription.waiting and len(received) < limit:
            message, ack_id = subscription.waiting.popleft(), str(next(self._ids))
            subscription.delivered[ack_id] = due_s, message
            received.append(types.ReceivedMessage(ack_id=ack_id, message=message))
        return types.PullResponse(received_messages=received)

    def _check(self, context: grpc.ServicerContext, exists: bool) -> None:
        if self.failure is not None:
            context.abort(self.failure, "as a test wants it")
        if not exists:
            context.abort(grpc.StatusCode.NOT_FOUND, "there is none")


@contextmanager
def running_pubsub(clock: Callable[[], float] = time.monotonic) -> Iterator[PubSubServer]:
    """Have a server that ends with the body."""
    server = PubSubServer(clock)
    server.start()
    try:
        yield server
    finally:
        server.stop()
