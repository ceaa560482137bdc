"""What the processes of a session inherit, and how it notices that one of Ray's servers has ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
from ray.core.generated.common_pb2 import JobConfig  # type: ignore[attr-defined]  # made when it is imported

from rlexp.cluster.own import OwnRay
from rlexp.cluster.session import RayStartError, RayStoppedError, job_without_folders

TIMEOUT_S = 20.0


@pytest.fixture
def servers() -> Iterator[dict[str, psutil.Process]]:
    """Two processes in the place of Ray's."""
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = {name: subprocess.Popen(words) for name in ("gcs_server", "raylet")}
    yield {name: psutil.Process(process.pid) for name, process in started.items()}
    for process in started.values():
        process.kill()
        process.wait(TIMEOUT_S)


def killed(process: psutil.Process) -> None:
    """Kill a process; it stays a zombie, as Ray's processes do until somebody asks for their exit codes."""
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        assert process.is_running()


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_end_of_a_server_is_reported_and_ray_is_not_called_again(servers: dict[str, psutil.Process], name: str) -> None:
    session, unblocked = OwnRay(1, 0, debug=False), threading.Event()
    session._servers = servers
    session.call(lambda: None)
    session.leave()
    assert not session.is_abandoned
    kills: Iterator[Callable[[], None]] = iter([lambda: None, lambda: killed(servers[name])])
    with pytest.raises(RayStoppedError, match=rf"process {name} \(pid {servers[name].pid}\) ended unexpectedly"):
        session.call(lambda: unblocked.wait(TIMEOUT_S), lambda: next(kills)())
    assert session.is_abandoned
    unblocked.set()


def test_session_is_abandoned_while_a_call_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlexp.processes.threads.LEAVE_TIMEOUT_S", 0.01)
    session, unblocked = OwnRay(1, 0, debug=False), threading.Event()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.call(lambda: unblocked.wait(TIMEOUT_S), interrupt)
    session.leave()
    assert session.is_abandoned
    unblocked.set()


def test_ray_that_does_not_start_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    unblocked = threading.Event()
    monkeypatch.setattr("ray.init", lambda **options: unblocked.wait(TIMEOUT_S))
    monkeypatch.setattr("rlexp.cluster.own.START_TIMEOUT_S", 0.1)
    monkeypatch.setattr("rlexp.processes.threads.LEAVE_TIMEOUT_S", 0.01)
    session = OwnRay(1, 0, debug=False)
    with pytest.raises(RayStartError, match=r"^Ray did not start within 0\.1 s$"), session:
        pass
    assert session.is_abandoned
    assert not session.folder.exists()
    unblocked.set()


def test_processes_of_a_job_do_not_search_the_current_folder_for_modules() -> None:
    job = job_without_folders()
    job._py_driver_sys_path.append("/where/the/command/was/started")
    sent = JobConfig.FromString(job._serialize())
    assert list(sent.py_driver_sys_path) == []
