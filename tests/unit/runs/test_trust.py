"""Who may tell us which modules to import: nobody but the user who runs the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlexp.config.keys.user_modules import UserModules
from rlexp.errors import ResumeError
from rlexp.runs.trust import refuse_foreign, refuse_modules_within, run_of


def test_own_files_are_accepted(tmp_path: Path) -> None:
    refuse_foreign(tmp_path)


def test_world_writable_files_are_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o707)
    with pytest.raises(ResumeError, match="may be written by every user"):
        refuse_foreign(tmp_path)


def test_files_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(ResumeError, match="belongs to another user"):
        refuse_foreign(tmp_path)


@pytest.mark.parametrize("name", ["ray.py", "torch.so", "evil.pyc", "numpy/__init__.py"])
@pytest.mark.parametrize("below", ["", "trial"])
def test_modules_in_the_working_directory_are_refused(
    name: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "run" / below
    (here / name).parent.mkdir(parents=True)
    (here / name).touch()
    monkeypatch.chdir(here)
    with pytest.raises(ResumeError, match="would be imported from here"):
        refuse_modules_within(tmp_path / "run", UserModules())
    monkeypatch.chdir(tmp_path)
    refuse_modules_within(tmp_path / "run", UserModules())


def test_a_run_without_modules_may_be_resumed_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").touch()
    (tmp_path / "00000-DQN").mkdir()
    monkeypatch.chdir(tmp_path)
    refuse_modules_within(tmp_path, UserModules(("numpy", "elsewhere.module")))


@pytest.mark.parametrize(
    ("here", "name", "file"),
    [
        ("", "run.evil", "evil.py"),
        ("", "run.trial.evil", "trial/evil.so"),
        ("", "run.evil.deeper", "evil/deeper.py"),
        ("run", "evil.deeper", "evil/deeper.py"),
        ("run", "evil", "evil.py"),
    ],
)
def test_named_module_inside_the_run_is_refused(
    here: str, name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / file
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.chdir(tmp_path / here)
    with pytest.raises(ResumeError, match="is inside it"):
        refuse_modules_within(tmp_path / "run", UserModules((name,)))


def test_module_folder_inside_the_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "evil.py").touch()
    with pytest.raises(ResumeError, match="is inside it"):
        refuse_modules_within(tmp_path / "run", UserModules(("evil",), (str(tmp_path / "run"),)))


def test_modules_outside_the_run_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tmp_path / "copies" / "checkpoint_000001"
    checkpoint.mkdir(parents=True)
    (tmp_path / "my_env.py").touch()
    monkeypatch.chdir(tmp_path)
    refuse_modules_within(run_of(checkpoint), UserModules(("my_env",)))
    assert run_of(checkpoint) == checkpoint
    (tmp_path / "run.json").touch()
    assert run_of(checkpoint) == tmp_path
