"""While a cluster is looked at or waited for, a signal ends the command only after what it began there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.config.load import load_plan
from rlexp.tuning.joining import first_processes

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


@pytest.mark.parametrize(
    ("num_workers", "num_cpus", "expected"), [(0, 4, 1), (2, 2, 3), (2, 16, 3), (3, 1, 2), (400, 8, 16)]
)
def test_ray_starts_few_processes_ahead(tmp_path: Path, num_workers: int, num_cpus: int, expected: int) -> None:
    file = tmp_path / "cartpole.yaml"
    file.write_text(f"cartpole: {{run: APEX, env: CartPole-v1, config: {{num_workers: {num_workers}}}}}")
    assert first_processes(load_plan([file]).everything, num_cpus) == expected


def test_ray_starts_a_process_for_each_cpu_where_as_many_trials_need_one(tmp_path: Path) -> None:
    file = tmp_path / "cartpole.yaml"
    lr = "{grid_search: [1.0e-3, 1.0e-4, 1.0e-5, 1.0e-6]}"
    file.write_text(f"cartpole: {{run: DQN, env: CartPole-v1, config: {{num_workers: 0, lr: {lr}}}}}")
    trials = load_plan([file]).everything
    assert [first_processes(trials, num_cpus) for num_cpus in (1, 3, 16)] == [1, 3, 4]
