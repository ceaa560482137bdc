"""The board of a command: the option, the environment, a file; passwords; what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.board.messages.address import PASSWORD_VARIABLE
from rlexp.cluster.session import OWN, Joining
from rlexp.commands.board_keys import chosen_board, refuse_board, refuse_typed_passwords
from rlexp.errors import UsageError

LOCAL = "redis://127.0.0.1:7000"
PUBLIC = "redis://8.8.8.8:6379"


def test_option_wins_over_the_environment() -> None:
    board = chosen_board(LOCAL, False, {"RLEXP_BOARD": "redis://127.0.0.2"})
    assert board is not None
    assert (board.host, board.port) == ("127.0.0.1", 7000)


def test_environment_names_the_board_where_the_option_does_not() -> None:
    board = chosen_board(None, False, {"RLEXP_BOARD": LOCAL})
    assert board is not None
    assert board.port == 7000


@pytest.mark.parametrize("option", ["none", "", " none "])
def test_none_is_without_the_board_of_the_environment(option: str) -> None:
    assert chosen_board(option, False, {"RLEXP_BOARD": LOCAL}) is None
    assert chosen_board(None, False, {}) is None


def test_file_has_the_address(tmp_path: Path) -> None:
    (tmp_path / "board").write_text(f"{LOCAL}\n")
    board = chosen_board(f"@{tmp_path / 'board'}", False, {})
    assert board is not None
    assert board.port == 7000


def test_password_of_the_address_goes_to_the_environment_and_nowhere_else() -> None:
    environment: dict[str, str] = {PASSWORD_VARIABLE: "older"}
    board = chosen_board("redis://:geheim@127.0.0.1:7000", False, environment)
    assert environment[PASSWORD_VARIABLE] == "geheim"
    assert "geheim" not in f"{board} {board!r}"


@pytest.mark.parametrize(
    "typed", [("redis://:geheim@10.0.0.7", None), (None, "amqps://me:geheim@10.0.0.7"), ("none", "mqtts://a:b@c")]
)
def test_password_that_a_cluster_would_keep_is_refused(typed: tuple[str | None, str | None]) -> None:
    with pytest.raises(UsageError, match="keeps the command line") as caught:
        refuse_typed_passwords(Joining("10.0.0.1:6379"), *typed)
    assert "geheim" not in f"{caught.value.message} {caught.value.hint}"
    refuse_typed_passwords(OWN, *typed)


def test_addresses_without_a_password_may_be_typed_in_a_cluster() -> None:
    refuse_typed_passwords(Joining("10.0.0.1:6379"), "rediss://10.0.0.7?ssl_ca_certs=/a:b@c", "@/a/file", "none", None)


def test_public_address_without_tls_needs_insecure() -> None:
    with pytest.raises(UsageError, match="public address"):
        chosen_board(PUBLIC, False, {})
    assert chosen_board(PUBLIC, True, {}) is not None
    assert chosen_board("rediss://8.8.8.8:6379", False, {}) is not None


@pytest.mark.parametrize("text", ["memory://here", "amqp://127.0.0.1", "127.0.0.1:6379", "redis://"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        chosen_board(text, False, {})


def test_insecure_needs_a_board() -> None:
    with pytest.raises(UsageError, match="--insecure is for boards"):
        chosen_board(None, True, {})


def test_sweeps_refuse_an_explicit_board_only() -> None:
    refuse_board(None, "many trials")
    refuse_board("none", "many trials")
    with pytest.raises(UsageError, match="--board is for rlexp run: many trials"):
        refuse_board(LOCAL, "many trials")
