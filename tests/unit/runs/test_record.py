"""The commit that a run was started from, found without running anything of its repository; and whose runs count."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rlexp.errors import ResumeError
from rlexp.runs.directories import refuse_foreign, run_of
from rlexp.runs.record import git_commit, hint_to_runs

OWN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
NAMED = {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "a"), ("EMAIL", "b"))
}


def git(folder: Path, *words: str) -> str:
    """Run git as its user does."""
    env = os.environ | OWN | NAMED
    return subprocess.run(["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def made(folder: Path, *options: str) -> Path:
    """Make a repository with one commit of two files."""
    folder.mkdir()
    git(folder, "init", "-q", *options)
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text(f"{name}\n", encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return made(tmp_path / "repository")


def head(folder: Path) -> str:
    """Return what git says."""
    return git(folder, "rev-parse", "HEAD").strip()


def test_commit_is_that_of_head_and_dirty_once_a_tracked_file_differs(repository: Path) -> None:
    commit = head(repository)
    assert git_commit(repository) == commit
    (repository / "untracked").write_text("c", encoding="utf-8")
    os.utime(repository / "a.txt", (1, 1))  # only its time is another one
    assert git_commit(repository) == commit
    (repository / "a.txt").write_text("other\n", encoding="utf-8")
    assert git_commit(repository) == f"{commit}-dirty"
    (repository / "below").mkdir()
    assert git_commit(repository / "below") == f"{commit}-dirty"


def test_commit_is_found_in_packed_refs_worktrees_and_a_detached_head(repository: Path, tmp_path: Path) -> None:
    commit = head(repository)
    git(repository, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "branch")
    git(repository, "pack-refs", "--all")
    assert git_commit(repository) == git_commit(tmp_path / "other") == commit
    git(repository, "checkout", "-q", "--detach")
    assert git_commit(repository) == commit


def test_hashes_of_the_longer_kind_are_read_too(tmp_path: Path) -> None:
    repository = made(tmp_path / "repository", "--object-format=sha256")
    assert git_commit(repository) == head(repository)
    (repository / "a.txt").write_text("b\n", encoding="utf-8")
    assert git_commit(repository) == f"{head(repository)}-dirty"


def test_no_repository_and_one_without_a_commit_have_none(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_commit(tmp_path) is None


HOSTILE = {
    "core.fsmonitor": (),
    "core.hooksPath": (),
    "filter.evil.clean": ("* filter=evil\n",),
    "filter.evil.process": ("* filter=evil\n",),
    "diff.evil.textconv": ("* diff=evil\n",),
    "diff.evil.command": ("* diff=evil\n",),
    "diff.external": (),
    "core.pager": (),
    "core.sshCommand": (),
    "core.editor": (),
    "alias.diff": (),
    "credential.helper": (),
}
"""Keys whose values are programs, and the attributes that make git use them."""


@pytest.mark.parametrize("key", HOSTILE)
def test_no_program_that_the_repository_names_is_run(repository: Path, tmp_path: Path, key: str) -> None:
    commit, sentinel, program = head(repository), tmp_path / "sentinel", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {sentinel}\ncat\n", encoding="utf-8")
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "pre-auto-gc", "reference-transaction", "fsmonitor-watchman"):
        (hooks / name).symlink_to(program)
    value = {"core.hooksPath": str(hooks), "alias.diff": f"!{program}"}.get(key, str(program))
    included = repository / "included"
    git(repository, "config", "--file", str(included), key, value)
    git(repository, "config", "include.path", str(included))
    for attributes in HOSTILE[key]:
        (repository / ".gitattributes").write_text(attributes, encoding="utf-8")
    (repository / "a.txt").write_text("other\n", encoding="utf-8")
    os.utime(repository / "b.txt", (1, 1))
    assert git_commit(repository) == f"{commit}-dirty"
    assert not sentinel.exists()


def test_a_submodule_and_another_work_tree_are_not_looked_at(repository: Path, tmp_path: Path) -> None:
    sentinel, inner = tmp_path / "sentinel", made(repository / "inner")
    git(repository, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    git(repository, "commit", "-q", "-m", "second")
    commit = head(repository)
    git(inner, "config", "core.fsmonitor", f"touch {sentinel}")
    git(repository, "config", "core.worktree", "/")
    assert git_commit(repository) == commit
    assert not sentinel.exists()


@pytest.mark.parametrize("name", ["HEAD", "index", "packed-refs"])
def test_a_pipe_in_place_of_a_file_of_git_keeps_nobody_waiting(repository: Path, name: str) -> None:
    commit = head(repository)
    if name == "packed-refs":
        git(repository, "pack-refs", "--all")
    (repository / ".git" / name).unlink()
    os.mkfifo(repository / ".git" / name)
    assert git_commit(repository) == (commit if name == "index" else None)


@pytest.mark.parametrize("text", ["ref: ../../secret", "ref: refs/../../secret", "\0", "x" * 100, ""])
def test_a_head_that_leads_elsewhere_is_no_commit(repository: Path, text: str) -> None:
    (repository.parent / "secret").write_text("0" * 40, encoding="utf-8")
    (repository / ".git" / "HEAD").write_text(text, encoding="utf-8")
    assert git_commit(repository) is None


def test_world_writable_files_are_refused(tmp_path: Path) -> None:
    refuse_foreign(tmp_path)
    tmp_path.chmod(0o707)
    with pytest.raises(ResumeError, match="may be written by every user"):
        refuse_foreign(tmp_path)


def test_files_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(ResumeError, match="belongs to another user"):
        refuse_foreign(tmp_path)


def test_run_of_a_checkpoint_is_the_checkpoint_itself_once_it_was_copied(tmp_path: Path) -> None:
    checkpoint = tmp_path / "copies" / "checkpoint_000001"
    checkpoint.mkdir(parents=True)
    assert run_of(checkpoint) == checkpoint
    (tmp_path / "run.json").touch()
    assert run_of(checkpoint) == tmp_path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("results/cartpole", "did you mean results/cartpole-dqn? rlexp ls DIR lists runs"),
        ("cartpole-dqn", "did you mean results/cartpole-dqn? rlexp ls DIR lists runs"),
        ("cartpole-dqn.yaml", "did you mean results/cartpole-dqn? rlexp ls DIR lists runs"),
        ("results", "name a run in it, for example results/cartpole-dqn; rlexp ls results lists them"),
        ("nothing", "rlexp ls DIR lists runs"),
        ("x" * 5000, "rlexp ls DIR lists runs"),
    ],
)
def test_a_path_that_is_no_run_is_compared_with_runs(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results/cartpole-dqn").mkdir(parents=True)
    (tmp_path / "results/cartpole-dqn/run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert hint_to_runs(Path(typed)) == meant
