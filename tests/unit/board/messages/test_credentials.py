"""Keys, tokens and addresses as text: what each end can sign with them, and that no secret is shown."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Any

import pytest

from rlexp.board.messages.address import (
    BoardAddress,
    QueueAddress,
    ServerAddress,
    parse_address,
    parse_queue_address,
    read_address,
    read_queue_address,
    require_private,
    tls_problem,
)
from rlexp.board.messages.basics import LONGEST_S, Backoff, Task
from rlexp.board.messages.credentials import (
    MASTER_VARIABLE,
    TOKEN_VARIABLE,
    JoinToken,
    MasterKey,
    accepts_task,
    parse_master,
    parse_token,
    password_keys,
    read_master,
    read_token,
    signed_task,
    trainer_keys,
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
    assert parse_address(str(address.without_passwords())) == address.without_passwords()


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
    (tmp_path / "empty").touch()
    refused = {None: "no board is given", f"@{tmp_path / 'none'}": "cannot be read", f"@{tmp_path / 'empty'}": "empty"}
    for missing, why in refused.items():
        with pytest.raises(UsageError, match=why):
            read_address(missing, {})


@pytest.mark.parametrize(
    ("host", "scheme", "is_refused"),
    [
        ("127.0.0.1", "redis", False),
        ("10.1.2.3", "redis", False),
        ("::1", "redis", False),
        ("8.8.8.8", "redis", True),
        ("8.8.8.8", "rediss", False),
        ("2001:4860:4860::8888", "redis", True),
        ("8.8.8.8", "mqtt", True),
        ("8.8.8.8", "mqtts", False),
    ],
)
def test_plain_connection_to_a_public_address_is_refused(host: str, scheme: str, is_refused: bool) -> None:
    address = ServerAddress(scheme, host, 6379, password="hidden")
    if not is_refused:
        require_private(address)
        return
    with pytest.raises(UsageError, match="public") as caught:
        require_private(address)
    assert "hidden" not in caught.value.message
    assert f"use {scheme}s://" in str(caught.value.hint)


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
    assert parse_queue_address(str(replace(address, password=""))) == replace(address, password="")
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


def test_waits_double_up_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(seed=1)
    waits = [backoff.failed() for _ in range(9)]
    for wait_s, longest_s in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30, 30], strict=True):
        assert 0.75 * longest_s <= wait_s <= min(longest_s, LONGEST_S)
    backoff.succeeded()
    assert backoff.failed() <= 1
    assert Backoff(seed=1).failed() != Backoff(seed=2).failed()


MASTER = MasterKey(bytes(range(32)))
ALICE = MASTER.token("alice")
TASK = Task("t1", "cartpole", 2, {"protocol": 1, "config": {"lr": 0.5, "hiddens": (8, 8)}, "imports": []})


def test_texts_come_back() -> None:
    assert parse_master(MASTER.to_text()) == MASTER
    assert parse_token(ALICE.to_text() + "\n") == ALICE
    assert parse_token(MASTER.token("a" * 64).to_text()).actor == "a" * 64


def test_each_wrong_character_is_found() -> None:
    for text, parse in ((MASTER.to_text(), parse_master), (ALICE.to_text(), parse_token)):
        for place in range(len(text)):
            for changed in (
                text[:place] + text[place + 1 :],
                text[:place] + ("A", "B")[text[place] == "A"] + text[place + 1 :],
            ):
                with pytest.raises(UsageError) as caught:
                    parse(changed)
                assert changed not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("text", ["", "hello", "rlexp-token-1-", "rlexp-token-1-é", "rlexp-token-1-" + "A" * 99])
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(UsageError):
        parse_token(text)


def test_master_key_in_place_of_a_token_is_named() -> None:
    with pytest.raises(UsageError, match="this is a master key") as caught:
        parse_token(MASTER.to_text())
    assert MASTER.to_text()[15:] not in caught.value.message


@pytest.mark.parametrize("name", ["", "a/b", "a b", "é", "x" * 65])
def test_ids_with_other_characters_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the id"):
        MASTER.token(name)


def test_secrets_are_in_no_representation() -> None:
    keys = (MASTER, ALICE, ALICE.keys("t1"), MASTER.keys("t1"), password_keys("geheim", "t1"))
    secrets = (MASTER.secret, ALICE.key, ALICE.keys("t1").key, password_keys("geheim", "t1").key)
    for shown in map(repr, keys):
        assert not any(repr(secret) in shown or secret.hex() in shown for secret in secrets)


def test_keys_are_read_from_the_environment_or_the_file_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "alice.token"
    file.write_text(ALICE.to_text() + "\n")
    assert (MASTER_VARIABLE, TOKEN_VARIABLE) == ("RLEXP_BOARD_MASTER", "RLEXP_BOARD_TOKEN")
    assert read_token({TOKEN_VARIABLE: f"@{file}"}) == read_token({TOKEN_VARIABLE: ALICE.to_text()}) == ALICE
    assert read_master({MASTER_VARIABLE: MASTER.to_text()}) == MASTER
    assert read_token({}) is None
    assert read_master({MASTER_VARIABLE: " "}) is None
    with pytest.raises(UsageError, match="cannot be read"):
        read_token({TOKEN_VARIABLE: f"@{tmp_path}/gone"})


def test_each_actor_and_task_has_a_key_of_its_own() -> None:
    trainer = MASTER.keys("t1")
    assert trainer.key_of("alice") == ALICE.keys("t1").key
    others = (trainer.key_of("bob"), MASTER.keys("t2").key_of("alice"), MasterKey.new().keys("t1").key_of("alice"))
    assert ALICE.keys("t1").key not in others
    assert (trainer.key_of(""), trainer.key_of("a/b")) == (None, None)


def test_task_is_accepted_only_as_its_trainer_signed_it() -> None:
    signed = signed_task(TASK, MASTER.keys(TASK.id))
    assert accepts_task(signed, ALICE.keys(TASK.id))
    content = dict(signed.description)
    changes: list[Callable[[], Task]] = [
        lambda: TASK,
        lambda: Task("t2", TASK.name, 2, content),
        lambda: Task("t1", "other", 2, content),
        lambda: Task("t1", TASK.name, 3, content),
        lambda: Task("t1", TASK.name, 2, content | {"config": {"lr": 0.6}}),
        lambda: Task("t1", TASK.name, 2, content | {"signature": content["signature"][:-2] + "00"}),
        lambda: Task("t1", TASK.name, 2, content | {"signature": "no digits"}),
        lambda: Task("t1", TASK.name, 2, content | {"signature": 7}),
        lambda: Task("t1", TASK.name, 2, content | {"config": float("nan")}),
        lambda: signed_task(TASK, MasterKey.new().keys(TASK.id)),
    ]
    assert [accepts_task(change(), ALICE.keys(TASK.id)) for change in changes] == [False] * len(changes)


def test_tasks_with_and_without_tokens_do_not_mix() -> None:
    shared = password_keys("geheim", TASK.id)
    assert accepts_task(signed_task(TASK, shared), shared)
    assert not accepts_task(signed_task(TASK, MASTER.keys(TASK.id)), shared)
    assert not accepts_task(signed_task(TASK, shared), ALICE.keys(TASK.id))


def test_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    needs: list[Callable[[], Any]] = [
        lambda: MASTER.token("alice"),
        lambda: trainer_keys(MASTER, "", "t1"),
        lambda: JoinToken("alice", b"", b"").keys("t1"),
    ]
    for need in needs:
        with pytest.raises(UsageError, match="cryptography") as caught:
            need()
        assert caught.value.hint == "pip install 'rlexp[redis]'"
    assert trainer_keys(None, "geheim", "t1").key_of("") is not None


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (9, "the certificate of rediss://h:6379 is not valid yet"),
        (10, "the certificate of rediss://h:6379 has expired"),
        (62, "the certificate of rediss://h:6379 is for another host name"),
        (18, "the certificate of rediss://h:6379 is from a CA that is not trusted here: reason"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_named(code: int, says: str) -> None:
    error = SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "reason"
    problem = tls_problem(BoardAddress("rediss", "h", 6379), error)
    assert problem is not None
    assert problem.message == says
