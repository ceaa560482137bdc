"""``rlexp board keys`` and the options that take what it makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlexp.board.messages.tokens import MASTER_VARIABLE, TOKEN_VARIABLE, parse_master, parse_token
from rlexp.cli import app
from rlexp.commands.board_keys import take_master, take_token
from rlexp.errors import UsageError


def made(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["board", "keys", "--out", str(folder), *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_files_are_for_their_owner_alone_and_no_secret_is_printed(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    printed = made(folder, "redis://:geheim@host", "--actor", "alice", "--actors", "2")
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["actor-1.token", "actor-2.token", "alice.token", "master.key"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "geheim" not in printed
    assert not any(file.read_text().strip() in printed for file in files)
    master = parse_master((folder / "master.key").read_text())
    assert parse_token((folder / "alice.token").read_text()) == master.token("alice")


def test_master_key_is_kept_and_tokens_are_made_again(tmp_path: Path) -> None:
    made(tmp_path, "--actor", "alice")
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    (tmp_path / "alice.token").unlink()
    answer = json.loads(made(tmp_path, "--actor", "alice", "--actor", "bob", "--json"))
    assert answer["tokens"] == {name: str(tmp_path / f"{name}.token") for name in ("alice", "bob")}
    assert {name: (tmp_path / name).read_text() for name in before} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no actor is given"),
        (["--actor", "a/b"], "cannot be the id"),
        (["ftp://x", "--actors", "1"], "does not begin with"),
    ],
)
def test_wrong_options_leave_no_file(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        made(tmp_path / "keys", *words)
    assert not (tmp_path / "keys").exists()


def test_options_put_secrets_where_processes_of_the_command_find_them(tmp_path: Path) -> None:
    made(tmp_path, "--actor", "alice")
    environment: dict[str, str] = {}
    take_master(f"@{tmp_path / 'master.key'}", True, environment)
    token = take_token(f"@{tmp_path / 'alice.token'}", environment)
    assert token is not None
    assert environment == {
        MASTER_VARIABLE: (tmp_path / "master.key").read_text().strip(),
        TOKEN_VARIABLE: token.to_text(),
    }


def test_secrets_on_the_command_line_are_refused(tmp_path: Path) -> None:
    made(tmp_path, "--actor", "alice")
    text = (tmp_path / "alice.token").read_text()
    takes: list[Callable[[], object]] = [lambda: take_token(text, {}), lambda: take_master(text, True, {})]
    for take in takes:
        with pytest.raises(UsageError, match="takes @FILE") as caught:
            take()
        assert "rlexp-token" not in f"{caught.value.message} {caught.value.hint}"
    with pytest.raises(UsageError, match="--keys is for boards"):
        take_master(f"@{tmp_path / 'master.key'}", False, {})
