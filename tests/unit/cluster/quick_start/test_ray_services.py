"""The services that a Ray of our own starts with, and what its raylet has in place of agents."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlexp.cluster.quick_start import raylet_script
from rlexp.cluster.quick_start.raylet import (
    ForkServer,
    actors_of_idle_processes,
    callbacks_not_counted,
    only_needed_services,
    raylet_command,
)
from rlexp.cluster.quick_start.raylet_script import AGENT
from rlexp.cluster.shortcuts import (
    SHORTCUTS,
    SMALL_SERVICES,
    TESTED,
    UNCOUNTED_CALLBACKS,
    VARIABLE,
    notes,
)
from tests.lowest_versions import ROOT

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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is turned off."""
    monkeypatch.delenv(VARIABLE, raising=False)


def parts() -> tuple[object, ...]:
    """Return all that is replaced."""
    from ray._private import node, services
    from ray.air._internal import usage
    from ray.tune.execution import tune_controller

    return node.Node, services.start_ray_process, usage.tag_callbacks, vars(tune_controller)["_ActorClassCache"]


@contextmanager
def all_replaced() -> Iterator[dict[str, Any] | None]:
    with only_needed_services(2, 3, with_logs=False) as config, actors_of_idle_processes(), callbacks_not_counted():
        yield config


def test_parts_are_replaced_and_afterwards_unchanged(quick: None) -> None:
    before = parts()
    with all_replaced() as config:
        assert [one is other for one, other in zip(parts(), before, strict=True)] == [False] * 4
        assert config == {"num_workers_soft_limit": 3}
    assert parts() == before


def test_variable_leaves_ray_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    before = parts()
    with all_replaced() as config:
        assert (config, parts()) == (None, before)
    assert [each.why_off() for each in SHORTCUTS] == [f"{VARIABLE}=0"] * 4 + [None] * 3
    assert notes(is_joined=False) == []


def test_installed_libraries_have_all_parts(quick: None) -> None:
    assert {each.name: each.why_off() for each in SHORTCUTS} == {each.name: None for each in SHORTCUTS}
    assert notes(is_joined=False) == notes(is_joined=True) == []


@pytest.mark.parametrize("missing", ["services.start_ray_process", "node.Node.start_monitor"])
def test_ray_of_other_parts_starts_as_it_does_by_itself_and_says_so(
    missing: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import node, services

    monkeypatch.delattr(f"ray._private.{missing}")
    before = {**vars(node)}, {**vars(services)}
    with only_needed_services(1, 1, with_logs=False):
        assert (vars(node), vars(services)) == before
    reason = f"Ray has no ray._private.{missing}"
    assert notes(is_joined=False) == [f"small services: off, since {reason}; {SMALL_SERVICES.otherwise}"]
    assert notes(is_joined=True) == []


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("ray.no_module:name", "Ray has no ray.no_module.name"),
        ("ray:init(other)", "ray.init of Ray takes other arguments"),
        ("ray:init(address)", None),
        ("ray/__init__.py:no such text", "ray/__init__.py has no 'no such text'"),
        ("ray/no_file.py:text", "ray/no_file.py has no 'text'"),
        ("no_library/file.py:text", "no_library/file.py has no 'text'"),
    ],
)
def test_changed_part_is_named(part: str, reason: str | None, quick: None) -> None:
    assert replace(UNCOUNTED_CALLBACKS, parts=("ray:init", part)).why_off() == reason


@pytest.mark.parametrize(
    ("found", "is_tested"), [("2.53.9", False), ("2.54.0", True), ("2.60.1", True), ("2.61", False)]
)
def test_version_of_ray_that_was_not_tested_turns_off_what_only_quickens(
    found: str, is_tested: bool, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.cluster.shortcuts.version", lambda package: found)
    reason = None if is_tested else f"Ray {found} was not tested, but 2.54 to before 2.61"
    assert {each.why_off() for each in SHORTCUTS if each.only_quickens} == {reason}
    assert len(notes(is_joined=False)) == (0 if is_tested else 4)


def test_tested_versions_are_those_that_can_be_installed() -> None:
    lowest, too_new = (".".join(map(str, numbers)) for numbers in TESTED)
    assert f'"ray[tune]>={lowest},<{too_new}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.ray
def test_own_ray_has_no_other_services(ray_session: ForkServer | None) -> None:
    if SMALL_SERVICES.why_off() is not None:
        pytest.skip("the Ray of all tests was started with all services")
    children = [" ".join(child.cmdline()) for child in psutil.Process(os.getpid()).children(recursive=True)]
    services = ("monitor.py", "dashboard.py", "dashboard/agent.py", "runtime_env/agent/main.py")
    assert [line for line in children for name in services if name in line.split(" --")[0]] == []
    assert any("raylet" in line for line in children)
