"""The commit that a run was started from, and that nothing of the repository is run to find it.

When ``run.json`` is written, and what a kill in between leaves.

Who may tell us which modules to import: nobody but the user who runs the command.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.errors import ResumeError
from rlexp.runs.record import RunRecord, Status, git_commit
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trust import refuse_foreign, run_of

OWN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
NAMED = {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "a"), ("EMAIL", "b"))
}


def git(folder: Path, *words: str) -> str:
    """Run git as its user does."""
    env = os.environ | OWN | NAMED
    return subprocess.run(["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of two files."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("a\n", encoding="utf-8")
    (folder / "b.txt").write_text("b\n", encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


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
    git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    assert git_commit(tmp_path) == head(tmp_path)
    (tmp_path / "a.txt").write_text("b\n", encoding="utf-8")
    assert git_commit(tmp_path) == f"{head(tmp_path)}-dirty"


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
    commit, sentinel = head(repository), tmp_path / "sentinel"
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "a.txt").write_text("a\n", encoding="utf-8")
    git(inner, "add", ".")
    git(inner, "commit", "-q", "-m", "first")
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


MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


def created(out: Path) -> RunDirectory:
    return RunDirectory.create(out, "run", None, [], overwrite=False)


def content(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "run.json").read_text()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that ``time.monotonic`` returns; each call of it takes a thousandth."""
    now = [1_000.0]

    def read() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr("time.monotonic", read)
    return now


def test_status_reaches_run_json_within_a_second_though_nothing_else_happens(
    tmp_path: Path, make_trial: MakeTrial, clock: list[float]
) -> None:
    trial = make_trial()
    with created(tmp_path) as run:
        run.start([trial])
        run.trial_status(trial, Status.RUNNING)
        assert content(run.path)["trials"][0]["status"] == "PENDING"
        clock[0] += 1.0
        run.write_when_due()
        assert content(run.path)["trials"][0]["status"] == "RUNNING"


def test_writing_run_json_takes_a_twentieth_of_the_time_at_most(
    tmp_path: Path, make_trial: MakeTrial, make_row: MakeRow, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []

    def write(record: RunRecord, path: Path) -> None:
        clock[0] += 0.5
        written.append(clock[0])

    trial = make_trial()
    with created(tmp_path) as run:
        monkeypatch.setattr(RunRecord, "write", write)
        run.start([trial])
        for iteration in range(1, 1_000):
            clock[0] += 0.1
            run.trial_status(trial, Status.RUNNING)
            run.trial_result(trial, make_row(iteration))
    assert 0.04 < 0.5 * len(written) / (written[-1] - written[0]) < 0.06


def test_open_reads_what_run_json_lacked_when_the_run_was_killed(
    tmp_path: Path, make_trial: MakeTrial, make_row: MakeRow
) -> None:
    trial = make_trial()
    with created(tmp_path) as run:
        run.start([trial])
        run.trial_status(trial, Status.RUNNING)
        run.write()
        folder = run.trial_directory(trial)
        rows = [make_row(n, reward) for n, reward in [(1, 4.0), (2, 9.0), (3, 5.0)]]
        (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for iteration in (2, 3):
            (folder / f"checkpoint_{iteration:06d}").mkdir()
    with RunDirectory.open(run.path) as opened:
        record = opened.record.trial(trial.name)
    assert (record.iterations, record.episode_reward_mean, record.best_episode_reward_mean) == (3, 5.0, 9.0)
    assert (record.best_checkpoint, record.best_checkpoint_reward) == (f"{trial.name}/checkpoint_000002", 9.0)


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


def test_run_of_a_checkpoint_is_the_checkpoint_itself_once_it_was_copied(tmp_path: Path) -> None:
    checkpoint = tmp_path / "copies" / "checkpoint_000001"
    checkpoint.mkdir(parents=True)
    assert run_of(checkpoint) == checkpoint
    (tmp_path / "run.json").touch()
    assert run_of(checkpoint) == tmp_path
