"""What notebooks have and programs do not: a display below the cell, and classes that are in no module.

A training has processes of its own, which import classes by name. So a class of a cell, or of the program that was
started, is written to a module first, as text, with the imports, functions and values that it uses. The module stays
beside the runs: they can be resumed and evaluated later.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from rlexp.errors import UsageError
from rlexp.files import replace_text

ShowPicture = Callable[[str, str], None]
"""Takes a picture of the live display, as HTML and as text."""
MAIN: Final = "__main__"
CODE_FOLDER: Final = "notebook_code"
"""Name of the folder beside the runs that has the modules."""
_FUTURE: Final = "from __future__ import annotations\n"
_IN_A_MODULE: Final = "write it to a module: %%writefile my_module.py as the first line of its cell, then import it"


def is_notebook() -> bool:
    """Return whether what is printed goes below the cell of a notebook, which can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    has_kernel = getattr(shell, "kernel", None) is not None  # IPython in a terminal has none
    return has_kernel and type(sys.stdout).__module__.startswith("ipykernel.")


def notebook_output() -> ShowPicture:
    """Return what shows pictures below the cell, each in place of the one before."""
    display = import_module("IPython.display").display
    handles: list[Any] = []

    def show(html: str, text: str) -> None:
        picture = {"text/html": html, "text/plain": text}
        if handles:
            handles[0].update(picture, raw=True)
        else:
            handles.append(display(picture, raw=True, display_id=True))

    return show


def with_modules(experiments: Mapping[str, Any], folder: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return experiments with names in place of the classes of ``__main__``, and the folder of their module.

    The module is written to ``folder``. Raises UsageError if it cannot be, or if a class needs what no text can give.
    """
    try:
        classes = list(dict.fromkeys(_main_classes(experiments)))
    except RecursionError:  # the reader says of a dict that contains itself where it does
        return experiments, ()
    if not classes:
        return experiments, ()
    text = _ModuleText(vars(sys.modules[MAIN])).of(classes)
    name = f"cell_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / f"{name}.py", text)
    except OSError as error:
        raise UsageError(f"cannot write {folder / name}.py: {error.strerror}", "choose another out") from error
    return _replaced(experiments, name), (str(folder.absolute()),)


def _main_classes(value: object) -> Iterator[type]:
    if isinstance(value, type) and value.__module__ == MAIN:
        yield value
    elif isinstance(value, Mapping):
        for item in (*value, *value.values()):  # a class with arguments is a key
            yield from _main_classes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _main_classes(item)


def _replaced(value: Any, module: str) -> Any:
    if isinstance(value, type) and value.__module__ == MAIN:
        return f"{module}:{value.__qualname__}"
    if isinstance(value, Mapping):
        return {_replaced(key, module): _replaced(item, module) for key, item in value.items()}
    return type(value)(_replaced(item, module) for item in value) if type(value) in (list, tuple) else value


class _ModuleText:
    """Writes one module: classes of a namespace, after all that they use by name."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._parts: dict[str, str] = {}
        self._open: set[str] = set()
        """Names that are being added: what they use may use them again."""

    def of(self, classes: list[type]) -> str:
        """Return the module's text."""
        for cls in classes:
            if self._names.get(cls.__qualname__) is not cls:
                raise UsageError(f"{cls.__qualname__} is not at the top level of its cell or program", _IN_A_MODULE)
            self._add(cls.__qualname__, cls.__qualname__)
        about = f'"""{", ".join(cls.__qualname__ for cls in classes)}, with what they use: written by rlexp."""\n\n'
        return about + _FUTURE + "\n\n" + "\n\n".join(self._parts.values())

    def _add(self, name: str, user: str) -> None:
        """Add a name that ``user`` uses, unless it is one of Python's own."""
        if name not in self._names or name in self._parts or name in self._open:
            return
        value = self._names[name]
        self._open.add(name)
        self._parts[name] = self._import_of(name, value) or self._value(name, value) or self._definition(name, user)
        self._open.discard(name)

    def _import_of(self, name: str, value: Any) -> str | None:
        """Return the line that imports a value under a name; None if it cannot be imported."""
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}\n"
        module = getattr(value, "__module__", None)
        known = [getattr(value, attribute, None) for attribute in ("__qualname__", "__name__", "_name")]
        own = next((each for each in known if isinstance(each, str)), None)
        if not isinstance(module, str) or module == MAIN or own is None or not own.isidentifier():
            return None
        found = getattr(sys.modules.get(module), own, None)
        return f"from {module} import {own} as {name}\n" if found is value else None

    @staticmethod
    def _value(name: str, value: Any) -> str | None:
        """Return the line that gives a name a value that can be written: numbers, texts, and lists of them."""
        try:
            text = repr(value)
            return f"{name} = {text}\n" if ast.literal_eval(text) == value else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None

    def _definition(self, name: str, user: str) -> str:
        """Return the text of a function or class, once all that it uses was added."""
        value = self._names[name]
        text = _source(name, value) if getattr(value, "__module__", None) == MAIN else None
        if text is None:
            used = "its text is not known" if name == user else f"it uses {name}, an object of {type(value).__name__}"
            raise UsageError(f"{user} cannot be given to the processes that train: {used}", _IN_A_MODULE)
        for used in sorted(set(_global_names(symtable.symtable(_FUTURE + text, "<cell>", "exec"), is_top=True))):
            self._add(used, name)
        return text


def _source(name: str, value: Any) -> str | None:
    """Return the text of the newest definition of a function or class, with its decorators."""
    for file in dict.fromkeys(_files(value)):
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in reversed(list(ast.walk(tree))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name and not node.col_offset:
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "".join(lines[start - 1 : node.end_lineno]).rstrip() + "\n"
    return None


def _files(value: Any) -> Iterator[str]:
    """Yield the names of the cells or files in which a definition may be, the likeliest first."""
    for part in (value, *vars(value).values()):
        part = getattr(part, "fget", None) or getattr(part, "__wrapped__", None) or part  # a property, a decorator
        code = getattr(getattr(part, "__func__", part), "__code__", None)
        if isinstance(code, CodeType):
            yield code.co_filename
    program = getattr(sys.modules[MAIN], "__file__", None)
    yield from [] if program is None else [str(program)]
    yield from (file for file in reversed(list(linecache.cache)) if "ipykernel_" in file or "<ipython" in file)


def _global_names(table: symtable.SymbolTable, *, is_top: bool) -> Iterator[str]:
    """Yield the names that a text takes from its module."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_top or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner, is_top=False)
