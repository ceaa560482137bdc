"""What the first and the second signal do to a run, before and after there is something to save, and to an actor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlexp.processes.signals import BOUNCE_S, END_TIMEOUT_S, TOGETHER_S, DrainRequest, StopRequest

SIGNALS = pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)


@pytest.fixture(autouse=True)
def hangup_is_not_ignored() -> Iterator[None]:
    """Undo what ``nohup pytest`` gives to its processes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    later = time.monotonic() + seconds
    monkeypatch.setattr(time, "monotonic", lambda: later)


@SIGNALS
def test_signal_before_trials_may_save_interrupts(number: int, exit_code: int) -> None:
    with StopRequest(lambda: None) as request:
        with pytest.raises(KeyboardInterrupt):
            send(number)
        assert request.requested
        assert request.exit_code == exit_code


@SIGNALS
def test_a_command_that_a_signal_ends_tells_by_its_exit_code_which_one(number: int, exit_code: int) -> None:
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised, StopRequest(lambda: None):
        send(number)
    if number == signal.SIGINT:
        assert raised.type is KeyboardInterrupt
    else:
        assert isinstance(raised.value, SystemExit)
        assert raised.value.code == exit_code


@SIGNALS
def test_first_signal_asks_trials_to_save_and_second_interrupts(
    number: int, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    with StopRequest(lambda: asked.append("asked")) as request:
        request.trials_may_save(tmp_path / "stop")
        assert not (tmp_path / "stop").exists()
        send(number)
        assert (tmp_path / "stop").exists()
        assert asked == ["asked"]
        pass_time(monkeypatch, BOUNCE_S)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert request.exit_code == exit_code


@SIGNALS
def test_signal_held_back_interrupts_afterwards(number: int, exit_code: int) -> None:
    reached = []

    def body(request: StopRequest) -> None:
        with request.held_back():
            send(number)
            reached.append("the end of the body")

    with StopRequest(lambda: None) as request:
        with pytest.raises(KeyboardInterrupt):
            body(request)
        assert request.exit_code == exit_code
    assert reached


def test_second_signal_is_never_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest(lambda: None) as request, request.held_back():
        send(signal.SIGINT)
        pass_time(monkeypatch, BOUNCE_S)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        request.signal = None


def test_signal_handlers_are_reinstalled_and_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(lambda: None) as request:
        with request.held_back():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray's start does, with one of its own
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_sighup_is_never_the_second_signal(first: int, tmp_path: Path) -> None:
    with StopRequest(lambda: None) as request:
        request.trials_may_save(tmp_path / "stop")
        send(first)
        send(signal.SIGHUP)  # a shell and the system both send one when a terminal is closed
        assert request.signal == first


@pytest.mark.parametrize(("number", "together_s"), [(signal.SIGTERM, TOGETHER_S), (signal.SIGINT, BOUNCE_S)])
def test_a_signal_to_a_process_and_to_its_group_is_one_request(
    number: int, together_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StopRequest(lambda: None) as request:
        request.trials_may_save(tmp_path / "stop")
        send(number)
        send(number)
        assert request.exit_code == 128 + number
        pass_time(monkeypatch, together_s)
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_sighup_stays_ignored_where_it_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest(lambda: None) as request:
            send(signal.SIGHUP)
            assert not request.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_after_the_directory_was_deleted_still_requests_a_stop(tmp_path: Path) -> None:
    with StopRequest(lambda: None) as request:
        request.trials_may_save(tmp_path / "deleted" / "stop")
        send(signal.SIGTERM)
        assert request.requested


def test_run_that_does_not_end_after_a_signal_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest(lambda: None) as request:
        request.trials_may_save(tmp_path / "stop")
        request.check_deadline()
        send(signal.SIGTERM)
        request.check_deadline()
        later = time.monotonic() + END_TIMEOUT_S + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            request.check_deadline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_an_actor_to_leave(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with DrainRequest() as request:
        assert not request()
        send(number)
        assert request()
        send(number)  # the same request: it came at once
        assert request.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_second_signal_ends_an_actor_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlexp.processes.signals.TOGETHER_S", -1.0)
    with DrainRequest():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_time_limit_asks_to_leave_without_an_error() -> None:
    request = DrainRequest(limit_s=0.0)
    assert request()
    assert request.exit_code == 0
    assert not DrainRequest(limit_s=1000.0)()


def test_end_of_the_parent_asks_to_leave() -> None:
    assert not DrainRequest(parent=os.getppid())()
    assert DrainRequest(parent=os.getppid() + 1)()
