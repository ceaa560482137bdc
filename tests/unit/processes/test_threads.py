"""Imports beside the work of the main thread.

The main thread waits for one that calls Ray, and leaves it when something says so, whatever Ray waits for.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlexp.processes.threads import RayThread, few_collections, imported_meanwhile

TIMEOUT_S = 30.0


class CheckError(Exception):
    """Something is wrong around the run."""


@pytest.fixture
def thread() -> Iterator[RayThread]:
    made = RayThread()
    yield made
    made.close()


def test_calls_share_one_other_thread(thread: RayThread) -> None:
    callers = []
    for _ in range(2):
        thread.call(lambda: callers.append(threading.current_thread()))
    assert callers[0] is callers[1] is not threading.current_thread()
    assert thread.is_free()


def test_call_raises_what_the_function_raises(thread: RayThread) -> None:
    def fail() -> None:
        raise ValueError("from Ray")

    with pytest.raises(ValueError, match="from Ray"):
        thread.call(fail)
    assert thread.is_free()


def test_failed_check_ends_the_wait_for_a_blocked_call(thread: RayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlexp.processes.threads.LEAVE_TIMEOUT_S", 0.01)
    unblocked = threading.Event()
    looks: list[int] = []

    def check() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            raise CheckError

    with pytest.raises(CheckError):
        thread.call(lambda: unblocked.wait(TIMEOUT_S), check)
    assert not thread.is_free()
    unblocked.set()
    monkeypatch.setattr("rlexp.processes.threads.LEAVE_TIMEOUT_S", TIMEOUT_S)
    assert thread.is_free()


def test_unused_thread_is_free(thread: RayThread) -> None:
    assert thread.is_free()


IMPORT_TIMEOUT_S = 20.0


def write_modules(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> tuple[str, ...]:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return tuple(sources)


def wait_for_imports() -> None:
    for thread in threading.enumerate():
        if thread.name == "imports":
            thread.join(IMPORT_TIMEOUT_S)


def fail_once_begun(name: str) -> None:
    deadline_s = time.monotonic() + IMPORT_TIMEOUT_S
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
