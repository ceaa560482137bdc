"""What benchmarks measure in, as most of them are too slow to be run by tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from benchmarks import pauses
from benchmarks.cpu_meter import CpuMeter
from benchmarks.pauses import PiecesInPauses
from benchmarks.processes import in_own_process, installed_version, run_command

BUSY = "import time\nwhile time.process_time() < 0.6: pass\n"
"""A program that needs more than half a CPU second, however busy the machine is."""


def test_work_is_done_in_a_process_of_its_own() -> None:
    assert in_own_process(60, os.getpid) != os.getpid()


def test_cpu_meter_counts_children_of_children_after_their_parent() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    with CpuMeter() as meter:
        subprocess.run([sys.executable, "-c", parent], check=True, timeout=60)
    assert 0.3 < meter.total_s < 3
    assert meter.at(0.0) == 0
    assert 0 < meter.at(1e9) == meter.total_s


def test_cpu_meter_leaves_out_what_began_before() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as before, CpuMeter() as meter:
        before.wait(60)
    assert meter.total_s == 0


def test_run_command_returns_its_events_and_its_end() -> None:
    printing = """print('{"event": "row", "steps": 3}', flush=True)"""
    row, end = run_command([sys.executable, "-c", printing], 60)
    assert (row.kind, row.fields["steps"], end.kind) == ("row", 3, "exit")
    assert row.seconds <= end.seconds


def test_run_command_has_the_environment_given() -> None:
    printing = "import os, json; print(json.dumps({'event': 'row', 'there': 'THERE' in os.environ}))"
    row, _ = run_command([sys.executable, "-c", printing], 60, {**os.environ, "THERE": "1"})
    assert row.fields["there"]


def test_run_command_that_fails_raises() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], 60)


def test_installed_version_of_another_python() -> None:
    assert installed_version(sys.executable, "pytest") == pytest.__version__
    assert installed_version(sys.executable, "no-such-package") is None


def test_pieces_are_measured_in_pauses_of_a_run_which_goes_on_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "RUNNING_S", 0.05)
    monkeypatch.setattr(pauses, "MEASURED_S", 0.02)
    with PiecesInPauses({"ones": partial(partial, int, "1")}, 60) as measured:
        with pytest.raises(SystemExit, match="before its first pause"):
            measured.per_second("ones")
        began = time.monotonic()
        run = subprocess.Popen([pauses.TRAINING, "-c", "while True: pass"], executable=sys.executable)
        seen = set()
        while psutil.STATUS_STOPPED not in seen and time.monotonic() < began + 30:
            seen.add(psutil.Process(run.pid).status())
        time.sleep(0.2)
    try:
        assert run.poll() is None
        assert psutil.Process(run.pid).status() != psutil.STATUS_STOPPED
    finally:
        run.kill()
        run.wait(60)
    assert psutil.STATUS_STOPPED in seen
    assert measured.per_second("ones") > 0
    assert 0 < measured.paused_s(began, time.monotonic()) < time.monotonic() - began
    assert measured.paused_s(began - 2, began - 1) == 0
