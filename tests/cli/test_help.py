"""``--help`` and ``-h`` of every command, and what a terminal sees of it elsewhere than in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rlexp.cli import COMMANDS, app, command_of


def helped(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_short_option_for_help(command: str) -> None:
    assert helped(command, "-h") == helped(command, "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_called_without_the_app_has_the_option_too(command: str) -> None:
    command_of.cache_clear()
    assert command_of(command).main(["-h"], standalone_mode=False) in (None, 0)
    assert helped(command, "-h") == helped(command, "--help")


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_help_sentences_are_not_cut(columns: int) -> None:
    listed = helped("-h", columns=columns)
    assert "..." not in listed.replace("[ARGS]...", "")
    sentences = " ".join(listed.split())
    for name in COMMANDS:
        first, _, _ = str(command_of(name).help).partition("\n")
        assert f"{name} {first}" in sentences


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    options = command_of(command).params
    assert [option.name for option in options if not (getattr(option, "help", "") or "").endswith((".", "..."))] == []


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


def test_help_imports_no_command() -> None:
    program = (
        "import sys\nfrom rlexp.cli import app\n"
        "try:\n    app(['--help'], prog_name='rlexp')\n"
        "finally:\n    names = 'pydantic', 'yaml', 'numpy', 'rlexp.commands.training'\n"
        "    print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_commands_run_with_as_many_collections_as_before() -> None:
    program = (
        "import gc, rlexp.__main__\nbefore = gc.get_threshold()\n"
        "try:\n    rlexp.__main__.main()\nfinally:\n    print(gc.get_threshold() == before)"
    )
    command = [sys.executable, "-c", program, "ls", "-h"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


def test_what_a_command_imported_is_not_searched_for_garbage_at_its_end() -> None:
    program = (
        "import gc, rlexp.__main__\n"
        "try:\n    rlexp.__main__.main()\nfinally:\n    print(gc.get_freeze_count() > len(gc.get_objects()))"
    )
    command = [sys.executable, "-c", program, "ls", "-h"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["explain", "lr"], ("psutil", "filelock", "rlexp.config.load", "rlexp.cluster.room")),
        (["ls", "experiments"], ("yaml", "numpy", "rlexp.config.keys.common", "rlexp.user_code")),
        (["evaluate", "-h"], ("yaml", "numpy", "rlexp.config.keys.common", "rlexp.user_code")),
        (["prune", "-h"], ("yaml", "numpy", "rlexp.config.keys.common", "rlexp.user_code")),
        (
            ["check", "experiments/cartpole-dqn.yaml"],
            ("filelock", "rlexp.cluster.room.packing", "rlexp.config.convert"),
        ),
    ],
)
def test_light_commands_import_only_what_they_need(words: list[str], unused: tuple[str, ...]) -> None:
    program = (
        "import sys, rlexp.__main__\n"
        f"try:\n    rlexp.__main__.main()\nfinally:\n    print([name for name in {unused} if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
