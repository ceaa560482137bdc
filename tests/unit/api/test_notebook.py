"""Notebooks: the display below a cell, with doubles of IPython, and classes of cells, written to a module."""

from __future__ import annotations

import io
import linecache
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rlexp.api import client
from rlexp.api.client import is_notebook, notebook_output
from rlexp.api.experiments import with_modules
from rlexp.errors import UsageError

PROGRAM = '''
import functools
import math
import numpy as np
from collections import deque as queue
from gymnasium import Env, spaces

GOAL = 6
SHAPE = {"length": GOAL, "names": ["a", None]}
unused = object()

def clipped(x):
    return min(max(x, 0), GOAL)

class Base(Env):
    """Below an env."""

class Corridor(Base):
    length: np.ndarray = None

    def __init__(self):
        self.seen = queue()
        GOAL_OF_METHOD = math.inf
        unused = spaces.Discrete(2)

    @property
    def goal(self):
        return clipped(SHAPE["length"])

class Bad(Env):
    def reset(self):
        return unused

class Empty(Base):
    pass

@functools.lru_cache
def cached():
    return GOAL

class Cached(Env):
    def reset(self):
        return cached()
'''


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The namespace of ``__main__`` after a cell with PROGRAM."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    cell = "/tmp/ipykernel_1/2.py"
    monkeypatch.setitem(linecache.cache, cell, (len(PROGRAM), None, PROGRAM.splitlines(True), cell))
    exec(compile(PROGRAM, cell, "exec"), vars(module))
    return vars(module)


def module_of(experiments: dict[str, Any], folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of the module, and its namespace."""
    named, folders = with_modules(experiments, folder)
    module, _, _ = named["env"].partition(":")
    assert folders == (str(folder),)
    text = (folder / f"{module}.py").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": module}
    exec(compile(text, module, "exec", dont_inherit=True), namespace)
    return text, namespace


def test_a_class_of_a_cell_is_written_with_all_that_it_uses(main: dict[str, Any], tmp_path: Path) -> None:
    text, written = module_of({"env": main["Corridor"]}, tmp_path)
    assert written["Corridor"]().goal == 6
    assert "from collections import deque as queue" in text
    assert "unused = " not in text.replace("unused = spaces", "")
    assert "class Bad" not in text


def test_classes_of_lists_and_dicts_share_one_module(main: dict[str, Any], tmp_path: Path) -> None:
    given = {"env": main["Corridor"], "config": {"wrappers": [main["Empty"], {"class": main["Empty"]}], "lr": 1.0}}
    named, _ = with_modules(given, tmp_path)
    module = named["env"].partition(":")[0]
    assert named["config"] == {"wrappers": [f"{module}:Empty", {"class": f"{module}:Empty"}], "lr": 1.0}
    assert [path.name for path in tmp_path.iterdir()] == [f"{module}.py"]


def test_a_class_with_arguments_is_a_key(main: dict[str, Any], tmp_path: Path) -> None:
    named, _ = with_modules({"custom_model": {main["Empty"]: {"width": 8}}}, tmp_path)
    (name,) = named["custom_model"]
    assert name.startswith("cell_")
    assert named["custom_model"][name] == {"width": 8}


def test_a_dict_that_contains_itself_is_left_to_its_reader(tmp_path: Path) -> None:
    given: dict[str, Any] = {"env": "CartPole-v1"}
    given["config"] = given
    assert with_modules(given, tmp_path)[0] is given


def test_the_same_text_is_the_same_module(main: dict[str, Any], tmp_path: Path) -> None:
    assert with_modules({"env": main["Empty"]}, tmp_path) == with_modules({"env": main["Empty"]}, tmp_path)


def test_a_class_without_methods_and_a_decorated_function_are_found(main: dict[str, Any], tmp_path: Path) -> None:
    assert issubclass(module_of({"env": main["Empty"]}, tmp_path)[1]["Empty"], main["Env"])
    text, written = module_of({"env": main["Cached"]}, tmp_path)
    assert written["Cached"]().reset() == 6
    assert "@functools.lru_cache" in text


def test_what_no_text_can_give_is_refused_with_what_to_do(main: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Bad cannot be given .*: it uses unused, an object of object") as caught:
        with_modules({"env": main["Bad"]}, tmp_path)
    assert "%%writefile" in str(caught.value.hint)
    inner = type("Inner", (), {"__module__": "__main__", "__qualname__": "make.<locals>.Inner"})
    with pytest.raises(UsageError, match="is not at the top level"):
        with_modules({"env": inner}, tmp_path)
    main["Typed"] = type("Typed", (), {"__module__": "__main__"})
    with pytest.raises(UsageError, match=r"Typed cannot be given .*: its text is not known"):
        with_modules({"env": main["Typed"]}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_experiments_without_such_classes_stay_and_nothing_is_written(tmp_path: Path) -> None:
    given = {"env": "CartPole-v1", "config": {"callbacks": Path}}
    assert with_modules(given, tmp_path / "code") == (given, ())
    assert not (tmp_path / "code").exists()


class Shell:
    kernel = object()


class OutStream(io.StringIO):
    """What a kernel has in place of ``sys.stdout``."""


OutStream.__module__ = "ipykernel.iostream"


def ipython(shell: object) -> types.ModuleType:
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("shell", "stdout", "expected"),
    [
        (Shell(), OutStream(), True),
        (Shell(), io.StringIO(), False),
        (object(), OutStream(), False),
        (None, OutStream(), False),
    ],
    ids=["kernel", "redirected", "terminal", "no-shell"],
)
def test_a_notebook_is_a_kernel_whose_output_is_not_redirected(
    monkeypatch: pytest.MonkeyPatch, shell: object, stdout: io.StringIO, expected: bool
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ipython(shell))
    monkeypatch.setattr(sys, "stdout", stdout)
    assert is_notebook() is expected


def test_without_ipython_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_notebook()


def test_pictures_replace_each_other_below_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, Any, dict[str, Any]]] = []

    class Handle:
        def update(self, picture: Any, **options: Any) -> None:
            shown.append(("update", picture, options))

    def display(picture: Any, **options: Any) -> Handle:
        shown.append(("display", picture, options))
        return Handle()

    monkeypatch.setattr(client, "import_module", lambda name: types.SimpleNamespace(display=display))
    show = notebook_output()
    show("<b>1</b>", "1")
    show("<b>2</b>", "2")
    assert shown == [
        ("display", {"text/html": "<b>1</b>", "text/plain": "1"}, {"raw": True, "display_id": True}),
        ("update", {"text/html": "<b>2</b>", "text/plain": "2"}, {"raw": True}),
    ]


def test_modules_of_packages_that_a_class_uses_are_imported(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``import xml`` alone gives no ``xml.dom.minidom``, which another module of the program may have imported."""
    text = "import xml.dom.minidom\n\n\nclass Env:\n    def reset(self):\n        return xml.dom.minidom.Document.x\n"
    cell = "/tmp/ipykernel_1/3.py"
    monkeypatch.setitem(linecache.cache, cell, (len(text), None, text.splitlines(True), cell))
    exec(compile(text, cell, "exec"), main)
    written, _ = module_of({"env": main["Env"]}, tmp_path)
    assert "import xml.dom.minidom\n" in written
