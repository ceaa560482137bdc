"""What asks an actor to leave: signals, a time limit, the end of its parent."""

from __future__ import annotations

import os
import signal

import pytest

from rlexp.processes import signals
from rlexp.processes.signals import DrainRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_to_leave(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with DrainRequest() as request:
        assert not request()
        signal.raise_signal(number)
        assert request()
        signal.raise_signal(number)  # the same request: it came at once
        assert request.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "TOGETHER_S", -1.0)
    with DrainRequest():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_time_limit_asks_to_leave_without_an_error() -> None:
    request = DrainRequest(limit_s=0.0)
    assert request()
    assert request.exit_code == 0
    assert not DrainRequest(limit_s=1000.0)()


def test_end_of_the_parent_asks_to_leave() -> None:
    assert not DrainRequest(parent=os.getppid())()
    assert DrainRequest(parent=os.getppid() + 1)()
