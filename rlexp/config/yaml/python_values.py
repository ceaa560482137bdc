"""Experiments without a file, as nodes: the dict of a program, with the limits of files, and a text of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlexp.config.yaml.nodes import MAX_DIGITS, Finding, Node, Place, Scalar, ScalarError, without_surrogates
from rlexp.config.yaml.reader import MAX_DEPTH, MAX_NODES, UnreadableYamlError, YamlText, parse, to_yaml

SOURCE: Final = "experiments"
"""The name of the dict in messages: the parameter of ``rlexp.run`` and ``rlexp.load``."""
_LARGEST: Final = 10**MAX_DIGITS
_IMPORTABLE: Final = "put the class at the top level of a module and import it from there: trials import it by its name"


@dataclass(frozen=True)
class ExperimentDict:
    """Experiments by name, as a program gives them: ``{"a": {"run": "DQN", "env": "CartPole-v1"}}``.

    Values are YAML's, NumPy's numbers and arrays, tuples, paths, and classes, which stand for ``module:Class``.
    """

    data: Mapping[Any, Any]
    stem: str = SOURCE
    """The name of a run of several experiments, as a file's stem would be."""

    def __str__(self) -> str:
        return SOURCE

    def read(self) -> YamlText:
        """Return the nodes, and findings about invalid values. Raises nothing."""
        reader = _TagReader()
        try:
            root = reader.node(self.data, (), None)
        except UnreadableYamlError as error:
            return YamlText(None, (error.finding,))
        return YamlText(root, tuple(reader.problems))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the same experiments as the text of a file."""
        root = self.read().root
        return to_yaml(root.plain() if root is not None else {})


@dataclass(frozen=True)
class ExperimentText:
    """Experiments as the text of a file that nobody has written: messages name what it is, and no lines of it."""

    text: str
    name: str
    """Its name in messages: ``the example cartpole-ppo``."""

    def __str__(self) -> str:
        return self.name

    @property
    def stem(self) -> str:
        """The name of a run of several experiments."""
        return self.name

    def read(self) -> YamlText:
        """Return the nodes, whose places have the lines of the text. Raises nothing."""
        return parse(self.text, lambda line, column: Place(self.name, line, column, subscript=self.name))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text."""
        return self.text


NotAFile = ExperimentDict | ExperimentText
"""Experiments that a command or a program has without a file."""


class _TagReader:
    """Makes the nodes of one dict, and collects findings about its values."""

    def __init__(self) -> None:
        self.problems: list[Finding] = []
        self._count = 0
        self._open: list[int] = []

    def node(self, value: Any, path: tuple[str | int, ...], key_place: Place | None) -> Node:
        """Return a value with everything below it; an invalid value is a problem, and null."""
        self._count += 1
        place = Place(SOURCE, self._count, 1, _subscript(path))
        if self._count > MAX_NODES or getattr(value, "size", 0) > MAX_NODES:  # an array may be far larger
            raise UnreadableYamlError(Finding(place, f"over {MAX_NODES} values"))
        try:
            if id(value) in self._open:
                raise ScalarError("contains itself")
            if len(self._open) > MAX_DEPTH:
                raise ScalarError(f"nested deeper than {MAX_DEPTH} levels")
            self._open.append(id(value))
            try:
                content = self._content(value, path)
            finally:
                self._open.pop()
        except ScalarError as error:
            self.problems.append(Finding(place, error.message, error.hint))
            content = None
        return Node(content, place, key_place or place)

    def _content(self, value: Any, path: tuple[str | int, ...]) -> Scalar | tuple[Node, ...] | dict[str, Node]:
        if hasattr(value, "tolist"):  # a number or an array of NumPy
            value = value.tolist()
        if isinstance(value, Mapping):
            return dict(self._entries(value, path))
        if isinstance(value, list | tuple):
            return tuple(self.node(item, (*path, index), None) for index, item in enumerate(value))
        return _scalar(value)

    def _entries(self, data: Mapping[Any, Any], path: tuple[str | int, ...]) -> Iterator[tuple[str, Node]]:
        seen: set[str] = set()
        for key, value in data.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                place = Place(SOURCE, self._count + 1, 1, _subscript(path) + f"[{key!r}]")
                self.problems.append(Finding(place, f"a key must be a string, got {type(key).__name__}"))
                continue
            name = str(key)
            node = self.node(value, (*path, name), None)
            if name in seen:
                self.problems.append(Finding(node.place, f"{name} is given twice, as a string and as a number"))
            seen.add(name)
            yield name, node


def _scalar(value: Any) -> Scalar:
    """Return a single value; raises ScalarError if no file could hold it."""
    if isinstance(value, str | Path):
        return without_surrogates(str(value))
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if abs(value) >= _LARGEST:
            raise ScalarError(f"a number of more than {MAX_DIGITS} digits is too long")
        return int(value)
    if isinstance(value, type):
        return name_of_class(value)
    kind = "a function" if callable(value) else f"an object of {type(value).__module__}.{type(value).__qualname__}"
    raise ScalarError(f"must be a value that YAML has, got {kind}", _hint(value))


def name_of_class(cls: type) -> str:
    """Return ``module:Class``, by which another process finds a class; raises ScalarError if none could."""
    module = cls.__module__
    if module == "__main__":
        message = f"{cls.__name__} is defined in the program that was started (or in a notebook), not in a module"
        hint = "rlexp.run takes it; else write it to a module: %%writefile my_module.py as the first line of its cell"
        raise ScalarError(message, hint)
    found = getattr(sys.modules.get(module), cls.__qualname__, None)
    if found is not cls:
        raise ScalarError(f"{module}.{cls.__qualname__} cannot be imported by its name", _IMPORTABLE)
    return f"{module}:{cls.__qualname__}"


def _hint(value: Any) -> str | None:
    if isinstance(value, set | frozenset | range):
        return f"write list({type(value).__name__}(...))"
    if callable(value):
        return "functions cannot be sent to trials: write a class in a module, or a value"
    return "use None, bool, int, float, str, list, tuple, dict, or numbers and arrays of NumPy"


def _subscript(path: tuple[str | int, ...]) -> str:
    return SOURCE + "".join(f"[{key}]" if isinstance(key, int) else f"[{_quoted(key)}]" for key in path)


def _quoted(key: str) -> str:
    """Return a key as most programs write it."""
    return f'"{key}"' if key.isprintable() and not set(key) & {'"', "\\"} else repr(key)
