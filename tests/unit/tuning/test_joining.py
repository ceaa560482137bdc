"""While a cluster is looked at or waited for, a signal ends the command only after what it began there."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in rlexp run, until trials can save
from rlexp.tuning.joining import signals_leave_nothing
with signals_leave_nothing():
    try:
        os.kill(os.getpid(), {number})
        time.sleep(600)
    finally:
        print("removed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_command_after_the_end_of_the_body(number: signal.Signals) -> None:
    words = [sys.executable, "-c", SCRIPT.format(number=int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "removed\n", "")
