"""What every Carrier does, whatever its server."""

import threading
from collections.abc import Iterator

import pytest

from rlexp.transport.board import Task
from rlexp.transport.carrier import Carrier
from tests.doubles.board_places import BoardPlace, MemoryPlace, RedisPlace

TASK = Task("t1", "cartpole", 1)


@pytest.fixture(params=["memory", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[BoardPlace]:
    place = MemoryPlace() if request.param == "memory" else RedisPlace(request.getfixturevalue("redis_server"))
    place.board().announce(TASK)
    yield place
    place.close()


@pytest.fixture
def sender(place: BoardPlace) -> Carrier:
    return place.board().queue(TASK.id)


@pytest.fixture
def receiver(place: BoardPlace) -> Carrier:
    return place.board().queue(TASK.id)


def test_messages_arrive_with_their_bytes(sender: Carrier, receiver: Carrier) -> None:
    messages = [b"", b"one", bytes(range(256)) * 100]
    sender.send(messages[:1])
    sender.send(messages[1:])
    sender.send([])
    assert receiver.receive(9, 0) == messages


def test_receive_takes_up_to_its_limit(sender: Carrier, receiver: Carrier) -> None:
    sender.send([b"a", b"b", b"c"])
    assert receiver.receive(2, 0) == [b"a", b"b"]
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
    assert [len(message) for message in receiver.receive(9, 0)] == [sender.max_bytes]


def test_close_can_be_repeated(sender: Carrier) -> None:
    sender.close()
    sender.close()
