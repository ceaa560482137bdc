"""Runs the blocks of a page in order, as a reader does who follows it from the top."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.pages.blocks import PARSED, RUN, SHOWN, Block, PageError, blocks_of
from tests.pages.page_folder import BLOCK_S, PageFolder, page_folder

_SHOWN_LINES = 30
_PARSERS: dict[str, Callable[[str], Any]] = {
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
    "toml": tomllib.loads,
}


class BlockError(Exception):
    """A block did not do what its page says."""


@dataclass
class PageResult:
    """What became of a page; ``failure`` is empty where all that could be run did what it should."""

    page: Path
    ran: int = 0
    saved: int = 0
    skipped: list[str] = field(default_factory=list)
    printed: str = ""
    seconds: float = 0.0
    failure: str = ""


def run_page(page: Path, bound_s: float = BLOCK_S) -> PageResult:
    """Run a page to its end or its first failure, since what comes after may need what failed."""
    result = PageResult(page)
    began = time.monotonic()
    try:
        with page_folder() as folder:
            for block in blocks_of(page):
                _do(block, folder, result, bound_s)
    except (BlockError, PageError) as failure:
        result.failure = str(failure)
    result.seconds = time.monotonic() - began
    return result


def missing(names: tuple[str, ...]) -> list[str]:
    """Return which of these are neither a package nor a program here."""
    return [name for name in names if shutil.which(name) is None and _package(name) is None]


def _package(name: str) -> object:
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None


def _do(block: Block, folder: PageFolder, result: PageResult, bound_s: float) -> None:
    directions = block.directions
    if reason := directions.skip or ", ".join(f"needs {name}" for name in missing(directions.needs)):
        result.skipped.append(f"{block.place}: {reason}")
    elif directions.file:
        folder.save(block)
        result.saved += 1
    elif block.language in RUN:
        result.printed = _run(block, folder, bound_s)
        result.ran += 1
    elif directions.prints:
        _compare(block, result.printed)
    elif block.language in PARSED:
        _parse(block)
    elif block.language not in SHOWN:
        raise BlockError(f"{block.place}: nobody knows what to do with a block of kind {block.language!r}")


def _parse(block: Block) -> None:
    try:
        _PARSERS[block.language](block.text)
    except (ValueError, yaml.YAMLError) as error:
        raise BlockError(f"{block.place}: no valid {block.language}: {error}") from error


def _compare(block: Block, printed: str) -> None:
    """Look for the text in what was printed, whatever the width of the terminal; raises BlockError."""
    rest = " ".join(printed.split())
    pieces = [" ".join(piece.split()) for piece in re.split("…|\n", block.text)]
    for piece in filter(None, pieces):
        _, found, rest = rest.partition(piece)
        if not found:
            raise BlockError(_told(block, f"was not printed: {piece}", printed))


def _run(block: Block, folder: PageFolder, bound_s: float) -> str:
    """Return what was printed; raises BlockError."""
    started = folder.start(block)
    if block.directions.background:
        if block.directions.until and not started.printed(block.directions.until, bound_s):
            raise BlockError(_told(block, f"never printed {block.directions.until!r}", started.text()))
        return ""
    status, output = started.wait(bound_s)
    wanted, line = block.directions.exit_status, folder.failed_line(block)
    if status != wanted:
        raise BlockError(_told(block, f"exit status {status}, not {wanted}", output, line))
    if 0 < line < last_command(block):
        raise BlockError(_told(block, f"exit status {status} before the last command", output, line))
    return output


def last_command(block: Block) -> int:
    """Return the page's line where the last command of a bash block begins."""
    lines = block.text.splitlines()
    number = max((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), default=0)
    while number and lines[number - 1].endswith("\\"):
        number -= 1
    return block.line + number


def _told(block: Block, problem: str, output: str, line: int = 0) -> str:
    """Return page:line, the problem, the command and the end of what it printed."""
    at = line or block.line
    command = block.text.splitlines()[at - block.line] if line else block.text.rstrip()
    shown = "\n".join(f"    {text}" for text in output.splitlines()[-_SHOWN_LINES:])
    return f"{block.page.name}:{at}: {problem}\n  {command}\n{shown}"
