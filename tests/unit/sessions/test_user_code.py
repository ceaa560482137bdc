"""What is sent to the nodes of a cluster: the user's own modules that are named, never installed ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlexp.cluster import environment as user_code
from rlexp.cluster.environment import runtime_env, sent_modules
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.errors import UsageError

KEEPALIVE = "RAY_grpc_keepalive_timeout_ms"


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


def test_connections_in_a_cluster_outlast_ray_s_20_seconds() -> None:
    made = runtime_env((), NO_MODULES, {})
    assert int(made["env_vars"][KEEPALIVE]) > 20_000
    made = runtime_env((), NO_MODULES, {KEEPALIVE: "30000"})
    assert made["env_vars"][KEEPALIVE] == "30000"


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
