"""Every option that takes a number refuses others: exit code 2, the option and its range, and no traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_type_hints

import pytest
from typer.testing import CliRunner

from rlexp.cli import _PACKAGE, COMMANDS, app
from rlexp.errors import UsageError

NO_NUMBERS = ["", "nan", "inf", "-inf", "x", "1e20", "1" * 30, "-" + "1" * 30, "9" * 5000, "0x10", "1,5", "None"]
ARGUMENTS = {"check": ["f"], "run": ["f"], "sweep": ["f"], "evaluate": ["d"], "logs": ["d"], "compare": ["d"]}


def functions() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command's words, and its function."""
    for name, module in COMMANDS.items():
        found = import_module(f"{_PACKAGE}.{module}")
        if name == "board":
            for command in found.board_app.registered_commands:
                yield (name, command.name or command.callback.__name__), command.callback
        else:
            yield (name,), getattr(found, name)


def numeric_options() -> Iterator[tuple[str, ...]]:
    """Yield the words of a command with an option of it that takes a number, from its declaration."""
    for words, function in functions():
        for hint in get_type_hints(function, include_extras=True).values():
            metadata = getattr(hint, "__metadata__", ())
            if metadata and re.search(r"\b(int|float)\b", str(hint.__origin__).replace("'", "")):
                yield (*words, (metadata[0].default, *metadata[0].param_decls)[0])


OPTIONS = sorted(set(numeric_options()))


def test_the_walk_finds_the_options() -> None:
    assert {("evaluate", "--episodes"), ("run", "--seed"), ("board", "serve", "--port")} <= set(OPTIONS)
    assert len(OPTIONS) >= 22


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_option_names_its_range_where_the_value_is_none_of_it(words: tuple[str, ...]) -> None:
    *command, option = words
    for text in NO_NUMBERS:
        result = CliRunner().invoke(app, [*command, f"{option}={text}", *ARGUMENTS.get(command[-1], ["x"])])
        assert isinstance(result.exception, UsageError), (text, result.exception, result.output)
        assert re.match(rf"{option} must be a (whole )?number from \S+ to \S+, got ", result.exception.message), text
        assert len(result.exception.message) < 200


@pytest.mark.parametrize("text", ["-1", "4294967296", "1.5"])
@pytest.mark.parametrize("command", ["check", "run", "sweep", "submit", "evaluate"])
def test_seed_is_one_that_every_library_takes(command: str, text: str) -> None:
    result = CliRunner().invoke(
        app, [command, "--seed", text, "x", *(["--board", "redis://x"] * (command == "submit"))]
    )
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == f"--seed must be a whole number from 0 to 4294967295, got {text}"
