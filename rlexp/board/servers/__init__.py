"""Opens the board and the queue at an address, with the client library that each needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from rlexp.board.messages.address import QUEUE_NAMES, BoardAddress, QueueAddress
from rlexp.board.servers.board import Board, Carrier
from rlexp.errors import UsageError

OPENERS: Final[dict[str, Callable[[BoardAddress], Board]]] = {}
"""Functions that open further kinds of boards, by the scheme of their addresses."""
_REDIS: Final = "redis"
_MODULES: Final = {_REDIS: "redis", "rabbitmq": "pika", "mqtt": "paho.mqtt", "pubsub": "google.pubsub_v1"}
"""Modules of client libraries, by the extra of rlexp that installs each."""


def open_board(address: BoardAddress) -> Board:
    """Return a board, which connects with its first call; the caller closes it.

    Raises UsageError if a client library is not installed.
    """
    if address.scheme in OPENERS:
        return OPENERS[address.scheme](address)
    try:
        from rlexp.board.servers.redis import RedisBoard
    except ModuleNotFoundError as error:
        raise _not_installed("Redis", _REDIS) from error
    return RedisBoard(address, None if address.queue is None else queue_opener(address.queue))


def queue_opener(address: QueueAddress) -> Callable[[str], Carrier]:
    """Return a function of a task's id that opens an end of its queue, which the caller closes.

    The end connects with its first call. Raises UsageError if the client library is not installed.
    """
    try:
        if address.kind == "mqtt":
            from rlexp.board.servers.mqtt import MqttCarrier

            return partial(MqttCarrier, address)
        if address.kind == "pubsub":
            from rlexp.board.servers.pubsub import PubSubCarrier

            return partial(PubSubCarrier, address.host, address.path)
        from rlexp.board.servers.amqp import AmqpCarrier

        return partial(AmqpCarrier, address)
    except ModuleNotFoundError as error:
        raise _not_installed(QUEUE_NAMES[address.kind], address.kind) from error


def client_modules(address: BoardAddress) -> dict[str, str]:
    """Return the modules that the ends of a board and its queue need, each with its extra of rlexp."""
    extras = [_REDIS] if address.queue is None else [_REDIS, address.queue.kind]
    return {} if address.scheme in OPENERS else {_MODULES[extra]: extra for extra in extras}


def _not_installed(name: str, extra: str) -> UsageError:
    return UsageError(f"the client library of {name} is not installed", f"pip install 'rlexp[{extra}]'")
