"""YAML text to nodes and back: every value's line and column, repeated keys found, limits against bombs, clear errors.

Pure Python on purpose: libyaml's C loader crashes the process on deep nesting. Written data is read back unchanged.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.reader import Reader

from rlexp.config.yaml.nodes import (
    FLOAT,
    INTEGER,
    UNDERSCORED,
    Finding,
    Node,
    Place,
    Scalar,
    ScalarError,
    given_twice,
    number_meant,
    read_plain,
    read_tagged,
    shown_key,
    with_space,
    without_surrogates,
)
from rlexp.files import open_regular

Locate = Callable[[int, int], Place]
"""A function that makes a place from line and column, both from 1."""

MAX_BYTES = 256 * 1024
"""Size of a file: more than ten times the largest experiment file that was ever published."""

_BYTE_ORDER_MARK = "\ufeff"
_INDENTATION = re.compile(r"[\t ]*")
_ANOTHER_DOCUMENT = "but found another document"
_BETTER_WORDS = {
    "mapping values are not allowed here": "unexpected colon; check the indentation, or quote the string",
    "expected <block end>": "the indentation of this line matches none of the lines above",
    "could not find expected ':'": "a key without a colon",
    "found undefined alias": "an alias (*name) without an anchor (&name)",
    _ANOTHER_DOCUMENT: "a second document starts here; a file can have only one",
    "found unexpected end of stream": "a quote or a bracket is not closed",
}

MAX_DEPTH = 32
"""Levels of nesting, of the text and again with its aliases expanded; experiment files need about 8."""

MAX_NODES = 20_000
"""Values of a file, and again with its aliases expanded; read in half a second."""

_TAG = "tag:yaml.org,2002:"

_PLAIN = "plain"
"""Our own tag of a value that is neither quoted nor tagged."""

_ODD_SPACE = re.compile(r"[^\S \t\n\r]|[\u200b\ufeff]")

_WRITE_ONE = "rlexp init writes a file to begin with, rlexp examples lists others"
_FORM = "write the name of an experiment (my-experiment:) and indent its keys below it"


class YamlText(NamedTuple):
    """The result of reading."""

    root: Node | None
    """The root; None if the text cannot be read or is empty."""
    problems: tuple[Finding, ...]
    notices: tuple[Finding, ...] = ()


def read_file(path: Path, name: str) -> YamlText:
    """Read an experiment file, a mapping at its top; ``name`` is the path as its user wrote it. Raises nothing."""
    try:
        text = read_text(path, name)
    except UnreadableYamlError as error:
        return YamlText(None, (error.finding,))
    found = parse(text, lambda line, column: Place(name, line, column))
    if found.root is None and found.problems:
        return found
    if found.root is None or found.root.value is None:
        return YamlText(None, (*found.problems, Finding(Place(name), "is empty", _FORM)))
    if not isinstance(found.root.value, Mapping):
        kind = "a list" if isinstance(found.root.value, tuple) else "a single value"
        problem = Finding(found.root.place, f"a file must be a mapping of names to experiments, got {kind}", _FORM)
        return YamlText(None, (*found.problems, problem))
    return found


def parse(text: str, locate: Locate) -> YamlText:
    """Read YAML text. Raises nothing."""
    builder = _NodeBuilder(locate)
    try:
        refuse_unprintable(text, locate)
        root = _compose(text, locate)
        node = builder.build(root) if root else None
    except UnreadableYamlError as error:
        return YamlText(None, (*builder.problems, error.finding))
    return YamlText(node, tuple(builder.problems), tuple(builder.notices))


def _compose(text: str, locate: Locate) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise UnreadableYamlError(explain(error, text, locate)) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a code point or a %YAML version beyond all bounds
        mark = loader.get_mark()
        message = "not valid YAML: a number is too large"
        raise UnreadableYamlError(Finding(locate(mark.line + 1, mark.column + 1), message)) from error


class _Loader(yaml.SafeLoader):
    """Composes PyYAML's nodes; marks plain values, and stops at the limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return the tag of a node that has none; plain values are read later."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TAG + "str"
        return _TAG + ("seq" if kind is yaml.SequenceNode else "map")

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node; raises MarkedYAMLError if it is nested too deep, or one too many."""
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_NODES:
            limit = f"nested deeper than {MAX_DEPTH} levels" if self._depth > MAX_DEPTH else f"over {MAX_NODES} values"
            raise yaml.MarkedYAMLError(problem=limit, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _NodeBuilder:
    """Builds one file's nodes, and collects problems and notices."""

    def __init__(self, locate: Locate) -> None:
        self.problems: list[Finding] = []
        self.notices: list[Finding] = []
        self._locate = locate
        self._count = 0
        self._open: list[yaml.Node] = []

    def build(self, node: yaml.Node, key_place: Place | None = None) -> Node:
        """Return the node with everything below it; raises UnreadableYamlError at a limit."""
        place = self._place(node)
        self._check_limits(node, place)
        self._open.append(node)
        value = self._value(node, place)
        self._open.pop()
        return Node(value, place, key_place or place, is_plain=node.tag == _PLAIN)

    def _check_limits(self, node: yaml.Node, place: Place) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise UnreadableYamlError(Finding(place, f"over {MAX_NODES} values once aliases are expanded"))
        if node in self._open:
            raise UnreadableYamlError(Finding(place, "contains itself, by an alias"))
        if len(self._open) > MAX_DEPTH:
            raise UnreadableYamlError(
                Finding(place, f"nested deeper than {MAX_DEPTH} levels once aliases are expanded")
            )
        odd = _ODD_SPACE.search(str(node.value)) if node.tag == _PLAIN else None
        if odd:
            message = f"U+{ord(odd.group()):04X} looks like a space, but is another character"
            raise UnreadableYamlError(Finding(place, message, "replace it by an ordinary space"))

    def _value(self, node: yaml.Node, place: Place) -> Scalar | tuple[Node, ...] | dict[str, Node]:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return tuple(self.build(item) for item in node.value)
        try:
            return _scalar(node)
        except ScalarError as error:
            self.problems.append(Finding(place, error.message, error.hint))
            return None

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        merged: list[Node] = []
        for key_node, value_node in self._with_whole_numbers(node):
            if key_node.tag == _PLAIN and key_node.value == "<<":
                merged.extend(self._merged(value_node))
            else:
                self._add_entry(entries, key_node, value_node)
        for source in merged:
            for key, child in source.entries().items():
                entries.setdefault(key, child)
        return entries

    def _with_whole_numbers(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the entries; in ``{lr: 0,001}`` the part after the comma is a problem, not a key."""
        entries, place = node.value, 0
        while place < len(entries):
            key, value = entries[place]
            is_open = node.flow_style and value.tag == _PLAIN and value.value
            text, end, rest = str(value.value) if is_open else "", value.end_mark, place + 1
            while is_open and rest < len(entries) and _is_rest(entries[rest], end):
                text, end, rest = f"{text},{entries[rest][0].value}", entries[rest][0].end_mark, rest + 1
            meant = number_meant(text) if rest > place + 1 else None
            place = place + 1 if meant is None else rest
            if meant is not None:
                message = f"{shown_key(text)} is not one number: in {{...}} a comma ends a value"
                self.problems.append(Finding(self._place(value), message, f"write {shown_key(meant)}"))
                value = yaml.ScalarNode(_PLAIN, meant, value.start_mark, end)
            yield key, value

    def _add_entry(self, entries: dict[str, Node], key_node: yaml.Node, value_node: yaml.Node) -> None:
        place = self._place(key_node)
        self._check_limits(key_node, place)
        child = self.build(value_node, place)
        try:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ScalarError("a key must be a string, not a list or a mapping")
            key = without_surrogates(str(key_node.value))  # whatever it would mean as a value
        except ScalarError as error:
            self.problems.append(Finding(place, error.message, error.hint))
            return
        first = entries.setdefault(key, child)
        if first is child:
            return
        if first.is_same_as(child):
            message = f"{shown_key(key)} is given twice with the same value: here and at {first.key_place}"
            self.notices.append(Finding(place, message))
        else:
            self.problems.append(given_twice(shown_key(key), first, child))

    def _merged(self, node: yaml.Node) -> Iterator[Node]:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            built = self.build(source)
            if isinstance(source, yaml.MappingNode):
                yield built
            else:
                self.problems.append(Finding(built.place, "<< can merge mappings only"))

    def _place(self, node: yaml.Node) -> Place:
        return self._locate(node.start_mark.line + 1, node.start_mark.column + 1)


def _is_rest(entry: tuple[yaml.Node, yaml.Node], end: yaml.Mark) -> bool:
    """Return whether an entry is digits alone, right behind the comma after ``end``."""
    is_bare = all(each.tag == _PLAIN for each in entry) and str(entry[0].value).isdecimal() and not entry[1].value
    return is_bare and entry[0].start_mark.index == end.index + 1


def _scalar(node: yaml.Node) -> Scalar:
    """Return the value of a node without children; raises ScalarError."""
    if not isinstance(node, yaml.ScalarNode):
        raise ScalarError(f"tag {shown_key(node.tag)} is not supported")
    text = without_surrogates(str(node.value))
    if node.tag == _PLAIN:
        return read_plain(text)
    return read_tagged(node.tag.removeprefix(_TAG), text)


class UnreadableYamlError(Exception):
    """Raised for unreadable text; has the one finding with the reason."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_text(path: Path, name: str) -> str:
    """Return a file's text, without a byte-order mark; raises UnreadableYamlError."""
    try:
        with path.open("rb") if _is_of_the_shell(path) else open_regular(path, None) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UnreadableYamlError(Finding(Place(name), "path does not exist", _hint_of_missing(path))) from error
    except (OSError, ValueError) as error:
        if os.path.isdir(path):
            raise UnreadableYamlError(Finding(Place(name), "is a directory", _file_to_name(path, name))) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableYamlError(Finding(Place(name), f"cannot be read: {reason}")) from error
    if len(data) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1024} KiB, too large for an experiment file"
        raise UnreadableYamlError(Finding(Place(name), message))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableYamlError(Finding(Place(name), "is UTF-16 text", "save it as UTF-8"))
    return _decode(data.removeprefix(codecs.BOM_UTF8), name)


def _is_of_the_shell(path: Path) -> bool:
    """Return whether a path is a shell's name for the output of another program: ``<(program)`` and ``/dev/stdin``."""
    return path.parts[:3] == ("/", "dev", "fd") or path == Path("/dev/stdin")


def _hint_of_missing(path: Path) -> str:
    """Return how to get a file; for ``=`` or a number, which may be part of ``-o KEY = VALUE``, how that is written."""
    is_part = path.name == "=" or FLOAT.fullmatch(path.name) or INTEGER.fullmatch(path.name)
    return "-o KEY=VALUE is one word, without spaces around =" if is_part else _WRITE_ONE


def _file_to_name(directory: Path, name: str) -> str:
    """Return the hint for a directory that was given in place of a file."""
    try:
        first = min(path.name for path in directory.glob("*.y*ml"))
    except (OSError, ValueError):  # it cannot be listed, or is empty
        first = "experiment.yaml"
    return f"name a file, for example {Path(name) / first}; rlexp resume DIR resumes a run, rlexp ls DIR lists runs"


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, column = position(data[: error.start].decode(), error.start)
        message = f"byte 0x{data[error.start]:02x} is not valid UTF-8"
        raise UnreadableYamlError(Finding(Place(name, line, column), message, "save the file as UTF-8")) from error


def refuse_unprintable(text: str, locate: Locate) -> None:
    """Raise UnreadableYamlError at the first character that YAML forbids: NUL, escape and their like."""
    # PyYAML's own pattern, which allows byte-order marks: another one takes milliseconds to compile.
    match = Reader.NON_PRINTABLE.search(text.replace(_BYTE_ORDER_MARK, "\0"))
    if match:
        message = f"character U+{ord(text[match.start()]):04X} is not allowed in YAML"
        raise UnreadableYamlError(Finding(locate(*position(text, match.start())), message))


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
    if problem.startswith(_ANOTHER_DOCUMENT):
        hint = "remove this line ---, or write a file for each of the two"
    return Finding(locate(line, column), f"not valid YAML: {next(better, problem)}", hint)


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


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its order; lists on one line."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, and quotes by YAML 1.2 as well as by PyYAML's 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _on_one_line(dumper: yaml.SafeDumper, items: Sequence[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(list, _on_one_line)
_Dumper.add_representer(tuple, _on_one_line)
for _tag, _pattern in (("int", INTEGER), ("float", FLOAT), ("int", UNDERSCORED)):
    _Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern.pattern})$"), list("-+.0123456789")
    )
