"""The main thread waits for one that calls Ray, and leaves it when something says so, whatever Ray waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rlexp.processes.threads import RayThread

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
