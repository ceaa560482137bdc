"""The text of a file before it is parsed, and YAML's syntax errors in words that help."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from yaml.reader import Reader

from rlexp.config.yaml.nodes import Finding, Place
from rlexp.files import open_regular

Locate = Callable[[int, int], Place]
"""Makes a place of a line and a column, both from 1."""

MAX_BYTES = 256 * 1024
"""Size of a file: more than ten times the largest experiment file that was ever published."""

_BYTE_ORDER_MARK = "\ufeff"
_INDENTATION = re.compile(r"[\t ]*")
_NO_SPACE = re.compile(r"\s*(?P<key>[A-Za-z_][\w./-]*):(?P<value>[^\s:].*)")
_BETTER_WORDS = {
    "mapping values are not allowed here": "unexpected colon; check the indentation, or quote the string",
    "expected <block end>": "the indentation of this line matches none of the lines above",
    "could not find expected ':'": "a key without a colon",
    "found undefined alias": "an alias (*name) without an anchor (&name)",
    "but found another document": "a second document starts here; a file can have only one",
    "found unexpected end of stream": "a quote or a bracket is not closed",
}


class UnreadableError(Exception):
    """The text cannot be read at all; holds the one finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_text(path: Path, name: str) -> str:
    """Return a file's text, without a byte-order mark; raises UnreadableError."""
    try:
        with path.open("rb") if _is_of_the_shell(path) else open_regular(path, None) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UnreadableError(Finding(Place(name), "path does not exist", _hint_of_missing(path))) from error
    except (OSError, ValueError) as error:
        if os.path.isdir(path):
            raise UnreadableError(Finding(Place(name), "is a directory", _file_to_name(path, name))) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(Finding(Place(name), f"cannot be read: {reason}")) from error
    if len(data) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1024} KiB, too large for an experiment file"
        raise UnreadableError(Finding(Place(name), message))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableError(Finding(Place(name), "is UTF-16 text", "save it as UTF-8"))
    return _decode(data.removeprefix(codecs.BOM_UTF8), name)


def _is_of_the_shell(path: Path) -> bool:
    """Return whether this is how shells name the output of another program: ``<(program)`` and ``/dev/stdin``."""
    return path.parts[:3] == ("/", "dev", "fd") or path == Path("/dev/stdin")


def _hint_of_missing(path: Path) -> str | None:
    """Return the hint for a name of no file that may be a value of ``-o``, behind a space."""
    return None if path.suffix in (".yaml", ".yml") else "-o KEY=VALUE is one word, without spaces around ="


def _file_to_name(directory: Path, name: str) -> str:
    """Return the hint for a directory that was given in place of a file."""
    try:
        first = min(path.name for path in directory.glob("*.y*ml"))
    except (OSError, ValueError):  # it cannot be listed, or has none
        first = "experiment.yaml"
    return f"name a file, for example {Path(name) / first}; rlexp resume DIR resumes a run, rlexp ls DIR lists runs"


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, column = position(data[: error.start].decode(), error.start)
        message = f"byte 0x{data[error.start]:02x} is not valid UTF-8"
        raise UnreadableError(Finding(Place(name, line, column), message, "save the file as UTF-8")) from error


def refuse_unprintable(text: str, locate: Locate) -> None:
    """Raise UnreadableError at the first character that YAML forbids: NUL, escape and their like."""
    # PyYAML's own pattern, which allows byte-order marks: another one takes milliseconds to compile.
    match = Reader.NON_PRINTABLE.search(text.replace(_BYTE_ORDER_MARK, "\0"))
    if match:
        message = f"character U+{ord(text[match.start()]):04X} is not allowed in YAML"
        raise UnreadableError(Finding(locate(*position(text, match.start())), message))


def position(text: str, index: int) -> tuple[int, int]:
    """Return line and column, both from 1, of the character at ``index``."""
    lines = (text[:index] + "|").splitlines()
    return len(lines), len(lines[-1])


def explain(error: yaml.MarkedYAMLError, text: str, locate: Locate) -> Finding:
    """Return PyYAML's error with its place, in clearer words where we have some."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    tab = _tab_near(text, line)
    if tab:
        return Finding(locate(*tab), "a tab is used for indentation", "indent with spaces")
    for number, text_of_line in _lines_near(text, line):
        spaced = with_space(text_of_line)
        if spaced:
            column = len(text_of_line) - len(text_of_line.lstrip()) + 1
            return Finding(locate(number, column), "not valid YAML: no space after a colon", f"write {spaced}")
    problem = str(error.problem or error.context or "unreadable")
    better = (words for start, words in _BETTER_WORDS.items() if problem.startswith(start))
    hint = f"{error.context} from line {error.context_mark.line + 1}" if error.context and error.context_mark else None
    return Finding(locate(line, column), f"not valid YAML: {next(better, problem)}", hint)


def with_space(text: str) -> str | None:
    """Return ``key: value`` for ``key:value``; None for any other text."""
    found = _NO_SPACE.fullmatch(text)
    return f"{found['key']}: {found['value'].strip()}" if found else None


def _tab_near(text: str, line: int) -> tuple[int, int] | None:
    """Return line and column of a tab in the indentation of the line, or of the one before."""
    for number, text_of_line in _lines_near(text, line):
        indentation = _INDENTATION.match(text_of_line)
        if indentation and "\t" in indentation.group():
            return number, indentation.group().index("\t") + 1
    return None


def _lines_near(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the line of an error and the one before, which may be its cause, with their numbers."""
    lines = text.splitlines()
    yield from ((number, lines[number - 1]) for number in (line, line - 1) if 1 <= number <= len(lines))
