"""``rlexp.run`` and ``resume`` in programs: real processes, Ray and files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlexp
from rlexp.api.runs import FailedRunError, Run
from rlexp.runs.record import Status
from tests.lab.envs import CountingEnv, LateRaisingEnv

pytestmark = pytest.mark.ray

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 150.0
INTERRUPTED = """
import pathlib, sys
print("the program runs", flush=True)
import rlexp
try:
    rlexp.run({"a": {"run": "DQN", "env": "CartPole-v1", "config": {"num_workers": 0, "timesteps_per_iteration": 50,
        "min_iter_time_s": 0, "learning_starts": 50, "buffer_size": 500}}}, out=sys.argv[1])
except KeyboardInterrupt as error:
    print("interrupted", error.__notes__, sorted({"ray", "torch"} & sys.modules.keys()), flush=True)
"""


def tiny(env: Any, steps: int = 100) -> dict[str, Any]:
    config: dict[str, Any] = {"num_workers": 0, "timesteps_per_iteration": 50, "min_iter_time_s": 0, "seed": 1}
    config |= {"learning_starts": 50, "buffer_size": 500, "hiddens": [8], "model": {"fcnet_hiddens": [8]}}
    return {"run": "DQN", "env": env, "stop": {"timesteps_total": steps}, "config": config}


def servers_of_rays() -> list[int]:
    """Return the ids of this process's servers of Ray: the tests' own Ray has some, with workers that come and go."""
    return [
        child.pid for child in psutil.Process().children(recursive=True) if child.name() in ("raylet", "gcs_server")
    ]


def test_run_in_a_thread_then_resume_and_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    environment, rays = dict(os.environ), servers_of_rays()
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(rlexp.run({"a": tiny(CountingEnv)}, out=tmp_path)))
    thread.start()
    thread.join(TIMEOUT_S)
    [run] = runs
    shown = capsys.readouterr()
    assert "finished: timesteps_total reached 100" in shown.out  # what the process prints passes through sys.stdout
    assert "iteration 2" in shown.err
    assert (run.directory, run.status, len(run.trials)) == (tmp_path / "a", Status.TERMINATED, 1)
    steps = run.results()["timesteps_total"].tolist()
    assert len(steps) == 2
    assert steps[-1] >= 100
    trial = run.trials[0]
    assert trial.last_row is not None
    assert trial.last_row["timesteps_total"] == steps[-1]
    assert trial.best_checkpoint is not None
    assert run.load_policy().metadata.checkpoint == trial.best_checkpoint
    resumed = rlexp.resume(run.directory, overrides=["stop.timesteps_total=150"], quiet=True)
    assert capsys.readouterr() == ("", "")
    later = resumed.results()["timesteps_total"].tolist()
    assert later[:2] == steps
    assert later[-1] >= 150
    assert {number: signal.getsignal(number) for number in before} == before
    assert (dict(os.environ), servers_of_rays()) == (environment, rays)


def test_failed_trial_raises_with_its_traceback_and_the_run(tmp_path: Path) -> None:
    with pytest.raises(FailedRunError) as caught:
        rlexp.run({"late": tiny(LateRaisingEnv)}, out=tmp_path, quiet=True)
    error = caught.value
    assert error.message.startswith("1 of 1 trials failed: 00000-DQN-tests.lab.envs_LateRaisingEnv: ")
    assert "this env raises" in error.message
    [trial] = error.run.failed
    assert trial.traceback is not None
    assert str(trial.traceback) in str(error.hint)
    assert "this env raises" in trial.traceback.read_text()


def test_interrupt_saves_and_ends_everything(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    command = [sys.executable, str(program), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            results = tmp_path / "out" / "a" / "00000-DQN-CartPole-v1" / "result.json"
            deadline_s = time.monotonic() + TIMEOUT_S
            while not (results.is_file() and results.stat().st_size) and time.monotonic() < deadline_s:
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            descendants = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)  # to the program alone, as a notebook's server does
            output, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert output.count("the program runs") == 1  # no worker has run it again
    assert f"interrupted [\"rlexp.resume('{tmp_path / 'out' / 'a'}') continues from its checkpoints\"] []" in output
    run = Run.at(tmp_path / "out" / "a")
    assert run.status is Status.STOPPED
    assert run.trials[0].best_checkpoint is not None
    assert not [each for each in descendants if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
