"""``--help`` and ``-h`` of every command, and what a terminal sees of it elsewhere than in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rlexp.cli import app

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback]


def helped(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_short_option_for_help(command: str) -> None:
    assert helped(command, "-h") == helped(command, "--help")


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_help_sentences_are_not_cut(columns: int) -> None:
    listed = helped("-h", columns=columns)
    assert "..." not in listed.replace("[ARGS]...", "")
    sentences = " ".join(listed.split())
    for command in app.registered_commands:
        assert command.callback is not None
        first, _, _ = str(command.callback.__doc__).partition("\n")
        assert f"{command.callback.__name__} {first}" in sentences


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    options = get_command(app).commands[command].params  # type: ignore[attr-defined]
    assert [option.name for option in options if not (option.help or "").endswith((".", "..."))] == []


@pytest.mark.parametrize(
    "arguments", [["--nope"], ["run"], ["run", "nowhere.yaml"], ["compare", "nowhere"], ["explain", "nonsense"]]
)
def test_errors_in_a_file_have_no_colours(arguments: list[str]) -> None:
    forced = {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true", "PY_COLORS": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "rlexp", *arguments]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **forced}, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr
    assert b"\x1b" not in done.stderr + done.stdout
