"""Which Ray a command trains in: the option wins over our variable, ours over Ray's, and ``local`` asks for our own.

What the processes of a session inherit, and how it notices that one of Ray's servers has ended.

With which token mode a cluster is tried, and what a Ray of our own is started with.

What is sent to the nodes of a cluster: the user's own modules that are named, never installed ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ray.core.generated.common_pb2 import JobConfig  # type: ignore[attr-defined]  # made when it is imported

from rlexp.cluster import environment as user_code
from rlexp.cluster.environment import (
    auth_modes,
    refuse_long_temporary_folder,
    runtime_env,
    sent_modules,
    set_ray_environment,
)
from rlexp.cluster.quick_start.raylet import job_without_folders
from rlexp.cluster.session import OWN, Joining, OwnRay, RayStartError, RayStoppedError, choose
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.errors import ResourceError, UsageError

KEEPALIVE = "RAY_grpc_keepalive_timeout_ms"
HEAD = "10.77.0.1:6379"
OTHER = "10.77.0.2:6379"


@pytest.mark.parametrize(
    ("option", "environment", "address"),
    [
        (None, {}, None),
        (None, {"RAY_ADDRESS": ""}, None),
        (None, {"RAY_ADDRESS": HEAD}, HEAD),
        (None, {"RAY_ADDRESS": "local"}, None),
        (None, {"RAY_ADDRESS": "auto"}, "auto"),
        (None, {"RLEXP_ADDRESS": OTHER, "RAY_ADDRESS": HEAD}, OTHER),
        (None, {"RLEXP_ADDRESS": "local", "RAY_ADDRESS": HEAD}, None),
        (HEAD, {"RLEXP_ADDRESS": OTHER, "RAY_ADDRESS": OTHER}, HEAD),
        ("local", {"RLEXP_ADDRESS": OTHER, "RAY_ADDRESS": HEAD}, None),
        ("auto", {"RAY_ADDRESS": HEAD}, HEAD),
        ("auto", {}, "auto"),
        ("[::1]:6379", {}, "[::1]:6379"),
        (None, {"RAY_ADDRESS": HEAD, "RLEXP_SESSION": "/tmp/rlexp-1"}, None),  # started by an env of a run
        (None, {"RLEXP_ADDRESS": HEAD, "RLEXP_SESSION": "/tmp/rlexp-1"}, HEAD),
        (HEAD, {"RLEXP_SESSION": "/tmp/rlexp-1"}, HEAD),
    ],
)
def test_address_that_wins(option: str | None, environment: dict[str, str], address: str | None) -> None:
    assert choose(option, environment) == Joining(address)
    assert "RAY_ADDRESS" not in environment


@pytest.mark.parametrize(
    ("option", "environment", "named"),
    [
        ("ray://head:10001", {}, "--address ray://head:10001"),
        ("auto", {"RAY_ADDRESS": "http://head:8265"}, "RAY_ADDRESS=http://head:8265"),
        (None, {"RLEXP_ADDRESS": "ray://head"}, "RLEXP_ADDRESS=ray://head"),
        (None, {"RAY_ADDRESS": "ray://me:hunter2@head:10001"}, "RAY_ADDRESS=ray://me:***@head:10001"),
    ],
)
def test_address_of_a_client_names_the_command_that_submits_the_job(
    option: str | None, environment: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(option, environment)
    assert caught.value.message.startswith(f"{named} is not the address of a cluster's head")
    assert "hunter2" not in str(caught.value.hint)
    assert str(caught.value.hint).endswith(":8265 -- rlexp run FILE --address auto")
    (extra,) = re.findall(r"rlexp\[(\w+)\]", str(caught.value.hint))
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(package.startswith("ray[default]") for package in project["optional-dependencies"][extra])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("address", ["head", "head:port", "a b:6379", ":6379"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is not a valid address"):
        choose(address, {})


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("90", 90), ("90s", 90), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert choose(HEAD, {}, text).wait_s == seconds


def test_options_of_clusters_need_one() -> None:
    for wait, sends_folder, name in (("10m", False, "--wait"), (None, True, "--working-dir")):
        with pytest.raises(UsageError, match=f"^{name} is for clusters"):
            choose(None, {}, wait, sends_folder)
    with pytest.raises(UsageError, match="is not a valid duration"):
        choose(HEAD, {}, "soon")
    for text in ("9" * 400 + "h", "1" * 20):
        with pytest.raises(UsageError, match="is more than 10 years"):
            choose(HEAD, {}, text)
    assert choose(None, {}) == OWN


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
    monkeypatch.setattr("rlexp.cluster.session.START_TIMEOUT_S", 0.1)
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


def test_cluster_is_tried_without_a_token_and_then_with_one_that_is_there(tmp_path: Path) -> None:
    assert auth_modes({}, tmp_path) == ["disabled"]
    assert auth_modes({"RAY_AUTH_TOKEN": "secret"}, tmp_path) == ["disabled", "token"]
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert auth_modes({}, tmp_path) == ["disabled", "token"]
    assert auth_modes({"RAY_AUTH_MODE": "token"}, tmp_path) == ["token"], "only that of the user"
    assert auth_modes({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}, tmp_path) == ["disabled"]


@pytest.mark.parametrize(
    ("name", "joins", "given", "kept"),
    [
        ("RAY_AUTH_MODE", False, None, "token"),
        ("RAY_AUTH_MODE", True, None, None),
        ("RAY_worker_niceness", False, None, "0"),
        ("RAY_worker_niceness", False, "5", "5"),
        ("RAY_worker_niceness", True, None, None),
    ],
)
def test_only_a_ray_of_our_own_demands_a_token_and_has_the_priority_of_the_command_unless_the_user_says_otherwise(
    name: str, joins: bool, given: str | None, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {} if given is None else {name: given})
    set_ray_environment(debug=False, joins=joins)
    assert os.environ.get(name) == kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lone_env_module.py").touch()
    (tmp_path / "package_of_envs").mkdir()
    (tmp_path / "package_of_envs" / "__init__.py").touch()
    (tmp_path / "torch.py").touch()
    return tmp_path


def test_modules_of_the_users_folders_are_sent(folder: Path) -> None:
    names = ["lone_env_module", "package_of_envs.deep.module", "torch", "nowhere", "json"]
    assert sent_modules(names, [str(folder)]) == [folder / "lone_env_module.py", folder / "package_of_envs"]


def test_users_values_of_variables_are_sent() -> None:
    made = runtime_env((), NO_MODULES, {"OMP_NUM_THREADS": "4"})
    assert made["env_vars"]["OMP_NUM_THREADS"] == "4"
    assert made["env_vars"]["MKL_NUM_THREADS"] == "1"
    assert "py_modules" not in made


@pytest.mark.parametrize(("given", "kept"), [({}, "60000"), ({KEEPALIVE: "30000"}, "30000")])
def test_connections_in_a_cluster_outlast_rays_20_seconds(given: dict[str, str], kept: str) -> None:
    assert runtime_env((), NO_MODULES, given)["env_vars"][KEEPALIVE] == kept


def test_whole_folder_without_the_runs(folder: Path) -> None:
    modules = UserModules((), (str(folder),))
    made = runtime_env(["lone_env_module"], modules, {}, folder, folder / "results")
    assert made["working_dir"] == str(folder)
    assert "/results" in made["excludes"]
    assert "py_modules" not in made


def test_large_folder_is_refused_but_for_what_is_not_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "MOST_BYTES", 10)
    (folder / ".git").mkdir()
    (folder / ".git" / "pack").write_bytes(bytes(20))
    runtime_env([], NO_MODULES, {}, folder, None)
    (folder / "data").write_bytes(bytes(20))
    with pytest.raises(UsageError, match="is too large to be sent"):
        runtime_env([], NO_MODULES, {}, folder, None)


def test_what_a_submitted_job_sends_is_not_sent_twice(folder: Path) -> None:
    submitted = {"runtime_env": {"working_dir": "gcs://x.zip", "env_vars": {"OMP_NUM_THREADS": "2"}}}
    environment = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(submitted)}
    made = runtime_env([], NO_MODULES, environment, folder, None)
    assert "working_dir" not in made
    assert "OMP_NUM_THREADS" not in made["env_vars"]


def test_temporary_folder_too_long_for_the_sockets_of_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 31 - len(str(os.getpid()))
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * (left - 1))
    refuse_long_temporary_folder()
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * left)
    with pytest.raises(ResourceError, match=f"has {left + 1} bytes; {left} are the limit"):
        refuse_long_temporary_folder()
