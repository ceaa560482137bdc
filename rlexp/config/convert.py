"""A file in current spelling: the user's keys, order and comments, with a comment at each change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.config.grid import Axis, line_of
from rlexp.config.keys.experiment import NUM_SEEDS
from rlexp.config.parsed_experiment import ParsedExperiment
from rlexp.config.translation import Translation, node_of
from rlexp.config.variants import data_of
from rlexp.config.yaml.nodes import MISSING, Finding, KeyPath, Node, at
from rlexp.config.yaml.reader import to_yaml

_INDENT = "  "
_FLOW_WIDTH = 100


def converted(parsed_experiments: Sequence[ParsedExperiment], text: str) -> str:
    """Return the file with the given text in current spelling; ``parsed_experiments`` are its experiments."""
    writer = _Writer(text, [notice for parsed in parsed_experiments for notice in parsed.notices])
    for parsed in parsed_experiments:
        writer.write_experiment(parsed)
    return writer.text()


class _Writer:
    """Writes one file; a comment stays at its key, or above it."""

    def __init__(self, text: str, notices: Sequence[Finding]) -> None:
        self._source = text.splitlines()
        self._next_line = 1
        self._out: list[str] = []
        self._changes: dict[int, list[str]] = defaultdict(list)
        for notice in notices:
            self._changes[notice.place.line].append(notice.message)

    def text(self) -> str:
        """Return the written text, with the comments at the end of the file."""
        self._comments_up_to(len(self._source) + 1, "")
        return "\n".join(self._out) + "\n"

    def write_experiment(self, parsed: ParsedExperiment) -> None:
        """Write one experiment in the order of the file; its ``num_samples``, beside no ``search``, counts seeds."""
        node = _with_axes(parsed)
        self._comments_up_to(parsed.place.line, "")
        self._write_changes(parsed.place.line, "")
        self._out.append(f"{_key(parsed.name)}:{self._trailing(parsed.place.line)}")
        entries = {NUM_SEEDS if key == "num_samples" else key: child for key, child in node.entries().items()}
        self._write_entries({"run": parsed.named.with_value(parsed.variants[0].run), **entries}, _INDENT)

    def _write_entries(self, entries: Mapping[str, Node], indent: str) -> None:
        ordered = sorted(entries.items(), key=lambda item: item[1].key_place.line)
        for key, node in ordered:
            if node.key_place.line >= self._next_line:
                self._comments_up_to(node.key_place.line, indent)
            self._write_changes(node.key_place.line, indent)
            self._write_entry(key, node, indent)

    def _write_entry(self, key: str, node: Node, indent: str) -> None:
        trailing = self._trailing(node.key_place.line)
        inline = _inline(node)
        if isinstance(node.value, Mapping) and node.entries() and _spans_lines(node, inline):
            self._out.append(f"{indent}{_key(key)}:{trailing}")
            self._write_entries(node.entries(), indent + _INDENT)
        else:
            self._out.append(f"{indent}{_key(key)}: {inline}{trailing}")

    def _write_changes(self, line: int, indent: str) -> None:
        self._out += [f"{indent}# converted: {message}" for message in self._changes.pop(line, ())]

    def _comments_up_to(self, line: int, indent: str) -> None:
        """Write the whole-line comments and change notes between the last key and the key at ``line``."""
        for number in range(self._next_line, line):
            content = self._source[number - 1].strip() if number <= len(self._source) else ""
            if content.startswith("#"):
                self._out.append(indent + content)
            self._write_changes(number, indent)
        self._next_line = max(self._next_line, line)

    def _trailing(self, line: int) -> str:
        """Return the comment after the key at ``line``, once."""
        if line < self._next_line or not 1 <= line <= len(self._source):
            return ""
        self._next_line = line + 1
        comment = _comment_of(self._source[line - 1])
        return f"  {comment}" if comment else ""


def _comment_of(line: str) -> str:
    """Return the comment at the end of a line; a # inside quotes starts no comment."""
    quote = ""
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#" and index and line[index - 1].isspace():
            return line[index:]
    return ""


def _spans_lines(node: Node, inline: str) -> bool:
    lines = {child.key_place.line for child in node.entries().values()}
    return len(inline) > _FLOW_WIDTH or lines != {node.key_place.line}


def _key(key: str) -> str:
    return to_yaml({key: None}).rpartition(":")[0]


def _inline(node: Node) -> str:
    """Return a value in flow style, on one line."""
    if isinstance(node.value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {_inline(child)}" for key, child in node.entries().items()) + "}"
    if isinstance(node.value, tuple):
        return "[" + ", ".join(_inline(child) for child in node.value) + "]"
    return to_yaml({"x": [node.value]}).removeprefix("x: [").rstrip().removesuffix("]")


def _with_axes(parsed: ParsedExperiment) -> Node:
    """Return the first variant as written, with each ``grid_search`` and sampler at its current key."""
    experiment = parsed.written[0]
    for number, axis in enumerate(parsed.axes):
        if axis.makes:
            experiment = _with_group(experiment, parsed.variants[0].run, axis)
        else:
            choices = [_choice(parsed, place, axis.path) for place in line_of(parsed.axes, number)]
            origin = experiment.find(axis.path) or axis.choices[0]
            experiment = experiment.put(axis.path, node_of(axis.data(choices), origin))
    return experiment


def _choice(parsed: ParsedExperiment, place: int, path: KeyPath) -> Any:
    """Return a variant's value at a path; its default if the choice at that place set another key."""
    value = at(parsed.written[place].plain(), path)
    return at(data_of(parsed.variants[place]), path) if value is MISSING else value


def _with_group(experiment: Node, run: str, axis: Axis) -> Node:
    """Return the experiment with an axis in its own spelling, in place of the keys that it sets."""
    translation = Translation(experiment, run)
    for path in axis.makes:
        translation.take(".".join(map(str, path)))
    data = axis.data([choice.plain() for choice in axis.choices])
    translation.put(".".join(map(str, axis.path)), data, axis.choices[0])
    return translation.experiment
