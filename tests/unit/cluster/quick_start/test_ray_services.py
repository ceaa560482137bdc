"""The services that a Ray of our own starts with, and what its raylet has in place of agents."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rlexp.cluster.quick_start import raylet_script
from rlexp.cluster.quick_start.raylet import only_needed_services, raylet_command
from rlexp.cluster.quick_start.raylet_script import AGENT

TIMEOUT_S = 20.0
GIVEN = [
    "/ray/raylet",
    "--node_manager_port=0",
    "--maximum_startup_concurrency=2",
    "--num_prestart_python_workers=64",
    "--dashboard_agent_command=python -u agent.py --head",
    "--runtime_env_agent_command=python main.py",
    "--python_worker_command=python setup_worker.py --runtime-env-agent-port=0",
]


def test_raylet_gets_stand_ins_and_only_the_processes_that_are_needed() -> None:
    changed = raylet_command(GIVEN, num_processes=3)
    assert [*changed[:2], changed[-1]] == [*GIVEN[:2], GIVEN[-1]]
    assert changed[2:4] == ["--maximum_startup_concurrency=3", "--num_prestart_python_workers=3"]
    for word, option in zip(changed[4:6], ("--dashboard_agent_command=", "--runtime_env_agent_command="), strict=True):
        assert word.startswith(option)
        interpreter, *_, script, task = shlex.split(word.removeprefix(option))
        assert (interpreter, Path(script), task) == (sys.executable, Path(str(raylet_script.__file__)), AGENT)


def test_stand_in_ends_with_its_parent_however_early() -> None:
    program = (
        "import os, subprocess, sys\n"
        "named = {**os.environ, 'RAY_RAYLET_PID': str(os.getpid())}\n"
        "started = subprocess.Popen(sys.argv[1:], env=named, stdout=subprocess.DEVNULL)\n"
        "print(started.pid, flush=True)\nsys.stdin.read()"
    )
    words = [sys.executable, "-c", program, sys.executable, "-I", "-S", str(raylet_script.__file__), AGENT]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    stand_in = psutil.Process(int(parent.stdout.readline()))
    assert stand_in.is_running()
    parent.kill()
    parent.communicate(timeout=TIMEOUT_S)
    stand_in.wait(TIMEOUT_S)


def test_ray_is_unchanged_afterwards() -> None:
    from ray._private import node, services

    before = node.Node, services.start_ray_process
    with only_needed_services(1, with_logs=False):
        assert (node.Node is before[0], services.start_ray_process is before[1]) == (False, False)
    assert (node.Node, services.start_ray_process) == before


@pytest.mark.parametrize("missing", ["services.start_ray_process", "node.Node"])
def test_ray_of_other_parts_starts_as_it_does_by_itself(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import node, services

    monkeypatch.delattr(f"ray._private.{missing}")
    before = {**vars(node)}, {**vars(services)}
    with only_needed_services(1, with_logs=False):
        assert (vars(node), vars(services)) == before


@pytest.mark.ray
def test_own_ray_has_no_other_services(ray_session: None) -> None:
    children = [" ".join(child.cmdline()) for child in psutil.Process(os.getpid()).children(recursive=True)]
    services = ("monitor.py", "dashboard.py", "dashboard/agent.py", "runtime_env/agent/main.py")
    assert [line for line in children for name in services if name in line.split(" --")[0]] == []
    assert any("raylet" in line for line in children)
