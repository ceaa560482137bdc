"""Master keys and join tokens as text, and what each end of a task can sign with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.messages.credentials import SharedKeys, accepts_task, signed_task
from rlexp.board.messages.tasks import Task
from rlexp.board.messages.tokens import (
    MASTER_VARIABLE,
    TOKEN_VARIABLE,
    JoinToken,
    MasterKey,
    parse_master,
    parse_token,
    read_master,
    read_token,
    trainer_keys,
)
from rlexp.errors import UsageError

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
    keys = (MASTER, ALICE, ALICE.keys("t1"), MASTER.keys("t1"), SharedKeys.of("geheim", "t1"))
    secrets = (MASTER.secret, ALICE.key, ALICE.keys("t1").key, SharedKeys.of("geheim", "t1").key)
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
    shared = SharedKeys.of("geheim", TASK.id)
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
