"""The board of a command: the option, the environment, a file; passwords and keys; what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlexp.board.messages.address import BOARD_VARIABLE, PASSWORD_VARIABLE, QUEUE_VARIABLE
from rlexp.board.messages.credentials import MASTER_VARIABLE, TOKEN_VARIABLE, MasterKey
from rlexp.commands.options import chosen_board, refuse_board, refuse_typed_passwords, take_master, take_token
from rlexp.errors import UsageError

LOCAL = "redis://127.0.0.1:7000"
PUBLIC = "redis://8.8.8.8:6379"


@pytest.fixture(autouse=True)
def _no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a board in the environment; what a test puts there is gone at its end."""
    for name in (BOARD_VARIABLE, PASSWORD_VARIABLE, QUEUE_VARIABLE, MASTER_VARIABLE, TOKEN_VARIABLE):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize(
    ("option", "variable", "chosen"),
    [
        (LOCAL, "redis://127.0.0.2", LOCAL),
        (None, LOCAL, LOCAL),
        ("@board", "redis://127.0.0.2", LOCAL),
        ("none", LOCAL, "None"),
        ("", LOCAL, "None"),
        (" none ", LOCAL, "None"),
        (None, "", "None"),
    ],
)
def test_board_is_that_of_the_option_or_its_file_or_else_of_the_environment(
    option: str | None, variable: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("board").write_text(f"{LOCAL}\n")
    monkeypatch.setenv(BOARD_VARIABLE, variable)
    assert str(chosen_board(option, False)) == chosen


def test_password_of_the_address_goes_to_the_environment_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "older")
    board = chosen_board("redis://:geheim@127.0.0.1:7000", False)
    assert os.environ[PASSWORD_VARIABLE] == "geheim"
    assert "geheim" not in f"{board} {board!r}"


def test_keys_go_where_processes_of_the_command_find_them(tmp_path: Path) -> None:
    master = MasterKey.new()
    texts = {MASTER_VARIABLE: master.to_text(), TOKEN_VARIABLE: master.token("alice").to_text()}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o600)
    take_master(f"@{tmp_path / MASTER_VARIABLE}", True)
    assert take_token(f"@{tmp_path / TOKEN_VARIABLE}") == master.token("alice")
    assert {name: os.environ[name] for name in texts} == texts


@pytest.mark.parametrize("take", [take_token, lambda text: take_master(text, True)])
def test_keys_on_the_command_line_are_refused(take: Callable[[str], object]) -> None:
    with pytest.raises(UsageError, match="takes @FILE") as caught:
        take("rlexp-token-1-geheim")
    assert "geheim" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "typed", [("redis://:geheim@10.0.0.7", None), (None, "amqps://me:geheim@10.0.0.7"), ("none", "mqtts://a:b@c")]
)
def test_password_that_a_cluster_would_keep_is_refused(typed: tuple[str | None, str | None]) -> None:
    with pytest.raises(UsageError, match="keeps the command line") as caught:
        chosen_board(typed[0], False, typed[1], in_cluster=True)
    assert "geheim" not in f"{caught.value.message} {caught.value.hint}"


def test_addresses_without_a_password_may_be_typed_in_a_cluster() -> None:
    refuse_typed_passwords("rediss://10.0.0.7?ssl_ca_certs=/a:b@c", "@/a/file", "none", None)


def test_public_address_without_tls_needs_insecure() -> None:
    with pytest.raises(UsageError, match="public address"):
        chosen_board(PUBLIC, False)
    assert chosen_board(PUBLIC, True) is not None
    assert chosen_board("rediss://8.8.8.8:6379", False) is not None


@pytest.mark.parametrize("text", ["memory://here", "amqp://127.0.0.1", "127.0.0.1:6379", "redis://"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        chosen_board(text, False)


def test_options_of_boards_need_one() -> None:
    with pytest.raises(UsageError, match="--insecure is for boards"):
        chosen_board(None, True)
    with pytest.raises(UsageError, match="--keys is for boards"):
        take_master("@master.key", False)


def test_sweeps_refuse_an_explicit_board_only() -> None:
    refuse_board(None, "many trials")
    refuse_board("none", "many trials")
    with pytest.raises(UsageError, match="--board is for rlexp run: many trials"):
        refuse_board(LOCAL, "many trials")
