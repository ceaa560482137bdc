"""What every Carrier does, whatever its server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from rlexp.board.messages.tasks import Task
from rlexp.board.servers.board import Carrier
from tests.doubles.board_places import MemoryPlace, QueuePlace, RedisPlace

TASK = Task("t1", "cartpole", 1)


OpenCarrier = Callable[[], Carrier]


@pytest.fixture(params=["memory", "redis", "rabbitmq", "mqtt"])
def open_end(request: pytest.FixtureRequest) -> Iterator[OpenCarrier]:
    """Opens an end of the same queue with each call."""
    if request.param in ("memory", "redis"):
        place = MemoryPlace() if request.param == "memory" else RedisPlace(request.getfixturevalue("redis_server"))
        place.board().announce(TASK)
        yield lambda: place.board().queue(TASK.id)
        place.close()
    else:
        with closing(QueuePlace(request.getfixturevalue(f"{request.param}_server"))) as queue:
            yield queue.end


@pytest.fixture
def sender(open_end: OpenCarrier, receiver: Carrier) -> Carrier:
    return open_end()


@pytest.fixture
def receiver(open_end: OpenCarrier) -> Carrier:
    """It has begun to receive: a queue may forget what is sent before."""
    receiver = open_end()
    assert receiver.receive(1, 0) == []
    return receiver


def received(receiver: Carrier, count: int, limit: int = 9) -> list[bytes]:
    """Return ``count`` messages, which need not come at once."""
    found: list[bytes] = []
    ends_at = time.monotonic() + 60.0
    while len(found) < count and time.monotonic() < ends_at:
        found += receiver.receive(min(limit, count - len(found)), 1.0)
    return found


def test_messages_arrive_with_their_bytes(sender: Carrier, receiver: Carrier) -> None:
    messages = [b"", b"one", bytes(range(256)) * 100]
    sender.send(messages[:1])
    sender.send(messages[1:])
    sender.send([])
    assert received(receiver, 3) == messages


def test_receive_takes_up_to_its_limit(sender: Carrier, receiver: Carrier) -> None:
    sender.send([b"a", b"b", b"c"])
    assert received(receiver, 2, limit=2) == [b"a", b"b"]
    assert receiver.receive(1, 60.0) == [b"c"]
    assert receiver.receive(1, 0) == []


@pytest.mark.parametrize("limit", [1, 2])
def test_receive_waits_for_what_comes(sender: Carrier, receiver: Carrier, limit: int) -> None:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(receiver.receive(limit, 60.0)))
    thread.start()
    sender.send([b"late"])
    thread.join(60)
    assert not thread.is_alive()
    assert found == [b"late"]


def test_receive_ends_without_messages(receiver: Carrier) -> None:
    assert receiver.receive(5, 0.01) == []


def test_largest_message_passes_and_a_larger_one_is_refused(sender: Carrier, receiver: Carrier) -> None:
    sender.send([b"x" * sender.max_bytes])
    with pytest.raises(ValueError, match="bytes"):
        sender.send([b"small", b"x" * (sender.max_bytes + 1)])
    assert [len(message) for message in received(receiver, 1)] == [sender.max_bytes]
    assert receiver.receive(1, 0) == []


def test_close_can_be_repeated(sender: Carrier) -> None:
    sender.close()
    sender.close()
