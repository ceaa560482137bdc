"""Addresses of boards, and what keeps their passwords out of sight."""

import socket
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.messages.address import (
    BoardAddress,
    QueueAddress,
    parse_address,
    parse_queue_address,
    read_address,
    read_queue_address,
    require_private,
)
from rlexp.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("redis://h", BoardAddress("redis", "h", 6379)),
        ("redis://h:1/2", BoardAddress("redis", "h", 1, "2")),
        ("redis://:p%40ss@h", BoardAddress("redis", "h", 6379, password="p@ss")),
        ("rediss://u:p@[::1]:9", BoardAddress("rediss", "::1", 9, username="u", password="p")),
        ("rediss://h?ssl_ca_certs=/a/ca.pem", BoardAddress("rediss", "h", 6379, ca_file="/a/ca.pem")),
    ],
)
def test_addresses_are_read_and_written(text: str, address: BoardAddress) -> None:
    assert parse_address(text) == address
    assert parse_address(address.secret_url) == address


@pytest.mark.parametrize(
    "text",
    [
        "h:6379",
        "redis:/h",
        "http://h",
        "redis://",
        "redis://h:port",
        "redis://h:99999",
        "redis://h/x",
        "redis://[h",
        "rediss://h?ssl_cert_reqs=none",
        "rediss://h?ssl_check_hostname=false",
        "redis://u:hidden@h/x",
        "redis://u:hidden@h:port",
        "hidden@h",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "hidden" not in caught.value.message + str(caught.value.hint)


def test_password_is_masked() -> None:
    address = parse_address("redis://u:hidden@h:1/2")
    assert str(address) == f"{address}" == "redis://u:***@h:1/2"
    assert "hidden" not in repr(address)
    assert str(parse_address("redis://h")) == "redis://h:6379"


def test_address_comes_from_argument_file_or_environment(tmp_path: Path) -> None:
    file = tmp_path / "board"
    file.write_text("redis://file:1\n")
    environment = {"RLEXP_BOARD": "redis://env:2", "RLEXP_BOARD_PASSWORD": "p"}
    assert read_address(f"@{file}", environment) == BoardAddress("redis", "file", 1, password="p")
    assert read_address(None, environment).host == "env"
    assert read_address("redis://:own@h", environment).password == "own"
    for missing in (None, f"@{tmp_path / 'none'}", f"@{tmp_path}"):
        with pytest.raises(UsageError):
            read_address(missing, {})


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="empty"):
        read_address(f"@{tmp_path / 'empty'}", {})


@pytest.mark.parametrize(
    ("host", "scheme", "is_refused"),
    [
        ("127.0.0.1", "redis", False),
        ("10.1.2.3", "redis", False),
        ("::1", "redis", False),
        ("8.8.8.8", "redis", True),
        ("8.8.8.8", "rediss", False),
        ("2001:4860:4860::8888", "redis", True),
    ],
)
def test_plain_connection_to_a_public_address_is_refused(host: str, scheme: str, is_refused: bool) -> None:
    address = BoardAddress(scheme, host, 6379, password="hidden")
    if not is_refused:
        require_private(address)
        return
    with pytest.raises(UsageError, match="public") as caught:
        require_private(address)
    assert "hidden" not in caught.value.message


def test_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: [(0, 0, 0, "", host) for host in found])
    address = BoardAddress("redis", "name", 6379)
    found.append(("192.168.0.2", 6379))
    require_private(address)
    found.append(("1.1.1.1", 6379))
    with pytest.raises(UsageError):
        require_private(address)


def test_unknown_name_is_left_to_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: Any, **_options: Any) -> Any:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    require_private(BoardAddress("redis", "name", 6379))


@pytest.mark.parametrize(
    ("text", "address", "kind"),
    [
        ("amqps://u:p%2F@h/v%20h", QueueAddress("amqps", "h", 5671, "v h", "u", "p/"), "rabbitmq"),
        ("amqp://h:1", QueueAddress("amqp", "h", 1), "rabbitmq"),
        ("mqtts://h?ssl_ca_certs=ca.pem", QueueAddress("mqtts", "h", 8883, ca_file="ca.pem"), "mqtt"),
        ("mqtt://h/lab/one", QueueAddress("mqtt", "h", 1883, "lab/one"), "mqtt"),
    ],
)
def test_queues_are_read_and_written(text: str, address: QueueAddress, kind: str) -> None:
    assert parse_queue_address(text) == address
    assert parse_queue_address(address.secret_url) == address
    assert address.kind == kind


@pytest.mark.parametrize("text", ["redis://h", "kafka://u:hidden@h", "amqps://u:hidden@h?verify=none", "mqtt://"])
def test_what_is_no_queue_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(UsageError, match="the queue's address") as caught:
        parse_queue_address(text)
    assert "hidden" not in caught.value.message + str(caught.value.hint)


def test_passwords_of_board_and_queue_come_from_the_environment_and_are_not_shown() -> None:
    environment = {"RLEXP_QUEUE": "amqp://u@h", "RLEXP_QUEUE_PASSWORD": "hidden", "RLEXP_BOARD_PASSWORD": "own"}
    queue = read_queue_address(None, environment)
    board = BoardAddress("redis", "h", queue=queue, password="own")
    assert queue.password == "hidden"
    assert "hidden" not in f"{board!r} {board.queue} {board.without_passwords().queue!r}"
    assert board.without_passwords().with_passwords(environment) == board


def test_plain_queue_at_a_public_address_is_refused() -> None:
    with pytest.raises(UsageError, match="public") as caught:
        require_private(parse_queue_address("mqtt://u:hidden@8.8.8.8"))
    assert "mqtts://" in str(caught.value.hint)
    require_private(parse_queue_address("mqtts://8.8.8.8"))
