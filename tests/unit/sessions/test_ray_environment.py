"""With which token mode a cluster is tried, and what a Ray of our own is started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlexp.cluster.environment import auth_modes, set_ray_environment


def test_cluster_is_tried_without_a_token_and_then_with_one_that_is_there(tmp_path: Path) -> None:
    assert auth_modes({}, tmp_path) == ["disabled"]
    assert auth_modes({"RAY_AUTH_TOKEN": "secret"}, tmp_path) == ["disabled", "token"]
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert auth_modes({}, tmp_path) == ["disabled", "token"]


def test_mode_of_the_user_is_the_only_one_tried(tmp_path: Path) -> None:
    assert auth_modes({"RAY_AUTH_MODE": "token"}, tmp_path) == ["token"]
    assert auth_modes({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}, tmp_path) == ["disabled"]


@pytest.mark.parametrize(("joins", "mode"), [(False, "token"), (True, None)])
def test_only_a_ray_of_our_own_demands_a_token(joins: bool, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    set_ray_environment(debug=False, joins=joins)
    assert os.environ.get("RAY_AUTH_MODE") == mode


@pytest.mark.parametrize(("joins", "given", "kept"), [(False, None, "0"), (False, "5", "5"), (True, None, None)])
def test_processes_of_our_own_ray_have_the_priority_of_the_command_unless_the_user_says_otherwise(
    joins: bool, given: str | None, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "RAY_worker_niceness"
    monkeypatch.setattr(os, "environ", {} if given is None else {name: given})
    set_ray_environment(debug=False, joins=joins)
    assert os.environ.get(name) == kept
