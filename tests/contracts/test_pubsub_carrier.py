"""What only the carrier of Pub/Sub does, against a server of its gRPC interface."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("google.pubsub_v1", reason="google-cloud-pubsub is not installed")

import grpc

from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.messages.window import ReceiveWindow, SendWindow
from rlexp.board.servers.pubsub import ACK_DEADLINE_S, PubSubCarrier, batches
from tests.lab.board import Clock, eventually
from tests.lab.pubsub_server import PubSubServer, running_pubsub

WAIT_S = 30.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubServer]:
    with running_pubsub(clock) as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        yield server


@pytest.fixture
def sender(server: PubSubServer) -> Iterator[PubSubCarrier]:
    carrier = PubSubCarrier("p", "t", "task-1")
    yield carrier
    carrier.close()


@pytest.fixture
def receiver(server: PubSubServer) -> Iterator[PubSubCarrier]:
    """A carrier whose subscription exists: what was published before is not delivered."""
    carrier = PubSubCarrier("p", "t", "task-1")
    assert carrier.receive(1, 0.0) == []
    yield carrier
    carrier.close()


def received(carrier: PubSubCarrier, count: int) -> list[bytes]:
    messages: list[bytes] = []
    ends_at = time.monotonic() + WAIT_S
    while len(messages) < count:
        assert time.monotonic() < ends_at, f"{len(messages)} of {count} messages came"
        messages += carrier.receive(count - len(messages), WAIT_S)
    return messages


def test_requests_are_filled_and_none_exceeds_the_limit_of_the_service() -> None:
    sizes = [[len(message) for message in batch] for batch in batches([b"x" * 4_000_000] * 3 + [b"y"])]
    assert sizes == [[4_000_000, 4_000_000], [4_000_000, 1]]
    assert [len(batch) for batch in batches([b"z"] * 2500)] == [1000, 1000, 500]
    assert list(batches([])) == []


def test_messages_of_one_call_take_one_request(sender: PubSubCarrier, server: PubSubServer) -> None:
    sender.send([b"a", b"bb", b"ccc"])
    assert server.publish_requests == [[1, 2, 3]]


def test_tasks_of_one_topic_do_not_see_each_other(
    sender: PubSubCarrier, receiver: PubSubCarrier, server: PubSubServer
) -> None:
    other = PubSubCarrier("p", "t", "task-2")
    other.send([b"of another task"])
    sender.send([b"mine"])
    assert received(receiver, 1) == [b"mine"]
    eventually(lambda: server.num_unacknowledged() == 0)  # the service has dropped the other one
    other.close()


def test_messages_are_acknowledged_once_they_are_here(
    sender: PubSubCarrier, receiver: PubSubCarrier, server: PubSubServer, clock: Clock
) -> None:
    sender.send([b"a"])
    assert received(receiver, 1) == [b"a"]
    eventually(lambda: server.num_unacknowledged() == 0)
    clock.added_s += 2 * ACK_DEADLINE_S
    assert receiver.receive(1, 0.2) == []


def test_message_whose_acknowledgement_was_lost_comes_again(
    sender: PubSubCarrier, receiver: PubSubCarrier, server: PubSubServer, clock: Clock
) -> None:
    server.loses_acknowledgements = True
    sender.send([b"a"])
    assert received(receiver, 1) == [b"a"]
    clock.added_s += 2 * ACK_DEADLINE_S
    assert received(receiver, 1) == [b"a"]


def test_windows_make_up_for_what_is_lost_and_repeated(
    sender: PubSubCarrier, receiver: PubSubCarrier, server: PubSubServer
) -> None:
    sending, receiving = SendWindow(8), ReceiveWindow(8)
    for number in range(8):
        sending.put([b"%d" % number])
    server.loses = True
    sender.send(sending.take(0.0))
    server.loses, server.repeats = False, True
    sender.send(sending.take(10.0))
    numbers = [int(message) for message in received(receiver, 16)]
    assert [number for number in numbers if receiving.admit(number)] == list(range(8))
    assert (len(numbers), sending.num_sent_again) == (16, 8)


def test_subscription_that_was_removed_is_created_again(
    sender: PubSubCarrier, receiver: PubSubCarrier, server: PubSubServer
) -> None:
    (name,) = server.subscriptions
    before = server.subscriptions.pop(name)
    eventually(lambda: server.subscriptions.get(name) not in (None, before))
    sender.send([b"a"])
    assert received(receiver, 1) == [b"a"]


def test_close_deletes_the_subscription_of_the_end_that_received(
    sender: PubSubCarrier, receiver: PubSubCarrier, server: PubSubServer
) -> None:
    sender.close()
    sender.close()
    assert list(server.subscriptions) == ["projects/p/subscriptions/rlexp-task-1"]
    receiver.close()
    receiver.close()
    assert not server.subscriptions


def test_subscription_does_not_outlive_its_trainer_for_long(receiver: PubSubCarrier, server: PubSubServer) -> None:
    (subscription,) = server.subscriptions.values()
    request = subscription.request
    assert request.message_retention_duration.total_seconds() == 600
    assert request.expiration_policy.ttl.total_seconds() == 86_400


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, BoardLostError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, BoardLostError),
        (grpc.StatusCode.PERMISSION_DENIED, BoardError),
        (grpc.StatusCode.UNAUTHENTICATED, BoardError),
    ],
)
def test_failures_that_may_pass_are_told_from_others(
    sender: PubSubCarrier,
    receiver: PubSubCarrier,
    server: PubSubServer,
    failure: grpc.StatusCode,
    error: type[BoardError],
) -> None:
    server.failure = failure
    with pytest.raises(BoardError) as raised:
        sender.send([b"a"])
    assert type(raised.value) is error
    with pytest.raises(BoardError) as raised:
        receiver.receive(1, WAIT_S)
    assert type(raised.value) is error
    server.failure = None
    sender.send([b"back"])
    assert b"back" in received_after_errors(receiver)


def received_after_errors(carrier: PubSubCarrier) -> list[bytes]:
    """Return what comes first; a request that failed before the server was back may raise meanwhile."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        try:
            return received(carrier, 1)
        except BoardError:
            continue
    raise AssertionError("nothing came")


@pytest.mark.parametrize("use", ["send", "receive"])
def test_topic_that_does_not_exist_is_named_with_the_remedy(server: PubSubServer, use: str) -> None:
    carrier = PubSubCarrier("p", "absent", "task-1")
    with pytest.raises(BoardError, match="projects/p/topics/absent") as raised:
        carrier.send([b"a"]) if use == "send" else carrier.receive(1, 0.0)
    assert raised.value.hint == "create it: gcloud pubsub topics create absent"
    carrier.close()


def test_missing_credentials_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    carrier = PubSubCarrier("p", "t", "task-1")
    with pytest.raises(BoardError, match="no credentials") as raised:
        carrier.send([b"a"])
    assert "gcloud auth application-default login" in str(raised.value.hint)
    carrier.close()
