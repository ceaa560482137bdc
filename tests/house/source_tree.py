"""The source of rlexp as the tests of its house look at it: modules, their syntax trees, and who imports whom."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rlexp"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def trees() -> Mapping[str, ast.Module]:
    """Return the syntax tree of each module. Not a constant: every process of the tests would parse them all."""
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


@cache
def lines() -> Mapping[str, int]:
    """Return the number of lines of each module."""
    return {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}


class Import(NamedTuple):
    """A statement that imports ``module``, and where it is, as a path below ``rlexp`` and a line."""

    path: str
    line: int
    module: str

    @property
    def where(self) -> str:
        return f"rlexp/{self.path}:{self.line}"


def room_of(path: str) -> str:
    """Return the room of a path below ``rlexp``, or the file of that name at the top."""
    return path.split("/")[0].removesuffix(".py")


def path_of(module: str) -> str:
    """Return where a module is, below ``rlexp``."""
    return MODULES[module].relative_to(PACKAGE).as_posix()


@cache
def imports() -> Sequence[Import]:
    """Return every import, also those within functions and for type checkers only."""
    return tuple(_imports())


def _imports() -> Iterator[Import]:
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (Import(path_of(module), node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}:{node.lineno}: relative import"
                assert node.module is not None
                yield Import(path_of(module), node.lineno, node.module)


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules of ours that statements import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in whole)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def at_the_top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, without those for type checkers only."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Try | ast.With):
            if not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
                yield from at_the_top(statement.body)
        else:
            yield statement
