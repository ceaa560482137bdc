"""Imports beside the work of the main thread."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path

import pytest

from rlexp.processes.threads import few_collections, imported_meanwhile

TIMEOUT_S = 20.0


def write_modules(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> tuple[str, ...]:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return tuple(sources)


def wait_for_imports() -> None:
    for thread in threading.enumerate():
        if thread.name == "imports":
            thread.join(TIMEOUT_S)


def fail_once_begun(name: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not hasattr(sys.modules.get(name), "may_end"):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    raise ZeroDivisionError


def test_modules_are_there_after_others_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = write_modules(
        tmp_path,
        monkeypatch,
        early_first="import nowhere_to_be_found",
        early_unfit="raise ValueError('numpy.dtype size changed')",
        early_last="import gc\nthreshold = gc.get_threshold()[0]",
    )
    before = gc.get_threshold()
    with imported_meanwhile(names):
        pass
    wait_for_imports()
    assert {"early_first", "early_unfit"}.isdisjoint(sys.modules)
    assert sys.modules["early_last"].threshold > before[0]
    assert gc.get_threshold() == before


def test_an_error_leaves_out_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = "import threading\nbegun, may_end = threading.Event(), threading.Event()\nbegun.set()\nmay_end.wait(20)\n"
    names = write_modules(tmp_path, monkeypatch, early_waiting=waiting, early_never="")
    with pytest.raises(ZeroDivisionError), imported_meanwhile(names):
        fail_once_begun("early_waiting")
    sys.modules["early_waiting"].may_end.set()
    wait_for_imports()
    assert "early_never" not in sys.modules


def test_collections_are_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with few_collections():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before
