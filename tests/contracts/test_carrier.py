"""What every Carrier does, whatever its server.

What only real servers of queues show: they end and come back, refuse strangers, and have certificates.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from rlexp.board.messages.address import QueueAddress, parse_queue_address
from rlexp.board.messages.basics import BoardError, BoardLostError, Task
from rlexp.board.servers import queue_opener
from rlexp.board.servers.board import Carrier
from rlexp.board.servers.carriers import ReconnectingCarrier
from tests.lab.board import MemoryPlace, QueuePlace, RedisPlace, eventually
from tests.lab.brokers import LOGIN, Mosquitto, QueueServer, RabbitMQ, running_queue

TASK = Task("t1", "cartpole", 1)

OpenCarrier = Callable[[], Carrier]


@pytest.fixture(params=["memory", "redis", "rabbitmq", "mqtt", "pubsub"])
def open_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenCarrier]:
    """Opens an end of the same queue with each call."""
    if request.param in ("memory", "redis"):
        place = MemoryPlace() if request.param == "memory" else RedisPlace(request.getfixturevalue("redis_server"))
        place.board().announce(TASK)
        yield lambda: place.board().queue(TASK.id)
        place.close()
    elif request.param == "pubsub":
        pytest.importorskip("google.pubsub_v1", reason="google-cloud-pubsub is not installed")
        from tests.lab.pubsub_server import running_pubsub

        with running_pubsub(time.time) as server, closing(QueuePlace("pubsub://p/t")) as queue:
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
            yield queue.end
    else:
        with closing(QueuePlace(request.getfixturevalue(f"{request.param}_server").url)) as queue:
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


WAIT_S = 60.0


@pytest.mark.parametrize("kind", ["rabbitmq", "mqtt"])
def test_wrong_password_is_refused_with_the_remedy(kind: str, request: pytest.FixtureRequest) -> None:
    server: QueueServer = request.getfixturevalue(f"{kind}_server")
    address = replace(parse_queue_address(server.url), password="falsch")
    with closing(queue_opener(address)("t1")) as carrier, pytest.raises(BoardError, match="password") as caught:
        carrier.send([b"x"])
    assert not isinstance(caught.value, BoardLostError)
    assert "RLEXP_QUEUE_PASSWORD" in str(caught.value.hint)
    assert not any(secret in f"{caught.value.message} {caught.value.hint}" for secret in ("falsch", LOGIN[1]))


@pytest.mark.parametrize("kind", ["rabbitmq", "mqtt"])
def test_server_that_cannot_be_reached_is_lost(kind: str) -> None:
    pytest.importorskip("pika")
    pytest.importorskip("paho.mqtt.client")
    scheme = "amqp" if kind == "rabbitmq" else "mqtt"
    with closing(queue_opener(QueueAddress(scheme, "127.0.0.1", 9))("t1")) as carrier:
        for call in (lambda: carrier.send([b"x"]), lambda: carrier.receive(1, 0)):
            with pytest.raises(BoardLostError, match="cannot be reached"):
                call()


def test_both_ends_go_on_after_the_server_was_away() -> None:
    pytest.importorskip("paho.mqtt.client")
    with running_queue(Mosquitto()) as server:
        address = parse_queue_address(server.url)
        sender, receiver = (ReconnectingCarrier(queue_opener(address)("t1"), seed) for seed in (1, 2))
        with closing(sender), closing(receiver):
            assert receiver.receive(1, 0) == []
            sender.send([b"before"])
            eventually(lambda: receiver.receive(1, 0.1) == [b"before"])
            server.kill()

            def both_know() -> bool:
                sender.send([])
                return receiver.receive(1, 0.01) == [] and None not in (sender.lost, receiver.lost)

            eventually(both_know)
            server.start()

            def arrives() -> bool:
                sender.send([b"after"])
                return receiver.receive(1, 0.1) == [b"after"]

            eventually(arrives)
            assert sender.lost is receiver.lost is None


def test_patience_with_a_server_ends() -> None:
    pytest.importorskip("paho.mqtt.client")
    clock = iter(range(0, 10_000, 100))
    carrier = ReconnectingCarrier(
        queue_opener(QueueAddress("mqtt", "127.0.0.1", 9))("t1"), 1, patience_s=150.0, clock=lambda: float(next(clock))
    )

    def keep_on() -> None:
        for _ in range(5):
            assert carrier.receive(1, 0) == []

    with pytest.raises(BoardError, match="away for 150 s"):
        keep_on()


def certificate(folder: Path, ca: trustme.CA, host: str, ends: datetime | None = None) -> Path:
    issued = ca.issue_cert(host, not_after=ends)
    file = folder / f"{host}-{ends is None}.pem"
    file.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return file


def send_over_tls(server: QueueServer, ca_file: Path | None) -> None:
    address = replace(parse_queue_address(server.url), ca_file="" if ca_file is None else str(ca_file))
    with closing(queue_opener(address)("t1")) as carrier:
        carrier.send([b"x"])


# paho-mqtt leaves a socket whose handshake fails to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [Mosquitto, pytest.param(RabbitMQ, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("host", "ended", "trusted", "error"),
    [
        ("localhost", False, True, None),
        ("localhost", False, False, "CA that is not trusted"),
        ("elsewhere", False, True, "another host name"),
        ("localhost", True, True, "expired"),
    ],
)
def test_certificates_are_verified(
    kind: type[QueueServer], host: str, ended: bool, trusted: bool, error: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("pika")
    pytest.importorskip("paho.mqtt.client")
    ca = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    ends = datetime.now(UTC) - timedelta(days=1) if ended else None
    with running_queue(kind(certificate(tmp_path, ca, host, ends))) as server:
        refusal = None
        try:
            send_over_tls(server, ca_file if trusted else None)
        except BoardError as raised:
            refusal = type(raised), raised.message, bool(raised.hint)
    gc.collect()
    if error is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert error in refusal[1]
        assert (refusal[0], refusal[2]) == (BoardError, True)
