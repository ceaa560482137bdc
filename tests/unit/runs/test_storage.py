"""The storage of a run: copies that follow the trials' directories, failures that are notes, and fetching them back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.errors import CheckpointError, ResourceError, ResumeError, UsageError
from rlexp.processes.threads import bounded
from rlexp.runs.checkpoint_contents import MANIFEST
from rlexp.runs.checkpoints import checkpoint_directory, list_checkpoints, remove_checkpoint, write_checkpoint
from rlexp.runs.kept_checkpoints import find_checkpoint
from rlexp.runs.record import RunRecord, TrialRecord, read_run_record
from rlexp.runs.storage import CheckpointCopies, StoragePlace, check_storage, fetch_missing, folder_of
from tests.lab.checkpoints import trained_with

pytestmark = pytest.mark.usefixtures("own_state")


TRIAL = "00000-DQN"
STARTED = "2026-01-02T03:04:05+00:00"
FOLDER = "run-20260102030405"
TIMEOUT_S = 60.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run" / TRIAL
    path.mkdir(parents=True)
    return path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "storage").as_uri()


@pytest.fixture
def copies() -> Iterator[CheckpointCopies]:
    made = CheckpointCopies(FOLDER, retry_s=0.01)
    yield made
    made.close()


def written(directory: Path, iteration: int, value: float = 0.0) -> Path:
    arrays = {"weights": {"w": np.full(100, value)}}
    return write_checkpoint(checkpoint_directory(directory, iteration), arrays, {}, {})


def recorded(run: Path, url: str, **trial: Any) -> RunRecord:
    known = TrialRecord(TRIAL, TRIAL, 0, {}, iterations=2, storage=url)
    record = RunRecord("run", [], {}, None, "host", 2, STARTED, trials=[replace(known, **trial)])
    record.write(run)
    trained_with(storage=url)
    return record


def contents(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def copied(tmp_path: Path) -> list[str]:
    return sorted(path.parent.name for path in (tmp_path / "storage" / FOLDER / TRIAL).glob(f"*/{MANIFEST}"))


def test_copies_follow_the_directory_of_the_trial(
    copies: CheckpointCopies, directory: Path, url: str, tmp_path: Path
) -> None:
    first = written(directory, 1)
    copies.follow(directory, url)
    assert copies.finish(TIMEOUT_S) == []
    assert contents(tmp_path / "storage" / FOLDER / TRIAL / first.name) == contents(first)
    written(directory, 2)
    remove_checkpoint(first)
    copies.follow(directory, url)
    assert copies.finish(TIMEOUT_S) == []
    assert copied(tmp_path) == ["checkpoint_000002"]
    again = written(directory, 2, value=1.0)  # a trial that was restarted writes an iteration again
    copies.follow(directory, url)
    assert copies.finish(TIMEOUT_S) == []
    assert contents(tmp_path / "storage" / FOLDER / TRIAL / again.name) == contents(again)


def test_copies_outlive_a_deleted_directory(
    copies: CheckpointCopies, directory: Path, url: str, tmp_path: Path
) -> None:
    written(directory, 1)
    copies.follow(directory, url)
    copies.finish(TIMEOUT_S)
    shutil.rmtree(directory)
    copies.follow(directory, url)
    assert copies.finish(TIMEOUT_S) == []
    assert copied(tmp_path) == ["checkpoint_000001"]


def test_failures_are_notes_and_copies_are_made_when_the_storage_works_again(
    directory: Path, url: str, tmp_path: Path
) -> None:
    tries = iter([OSError("no route to it"), OSError("no route to it"), None])

    def open_place(url: str) -> StoragePlace:
        error = next(tries)
        if error is not None:
            raise error
        return StoragePlace.at(url)

    written(directory, 1)
    copies = CheckpointCopies(FOLDER, retry_s=0.01, open_place=open_place)
    copies.follow(directory, url)
    failed, works = copies.finish(TIMEOUT_S)
    assert "cannot copy checkpoints of 00000-DQN to its storage: no route to it" in failed
    assert works == "the storage works again: checkpoints are copied to it"
    assert copied(tmp_path) == ["checkpoint_000001"]
    copies.close()
    copies.close()


def test_end_of_a_run_does_not_wait_for_a_silent_storage(directory: Path, url: str) -> None:
    asked, answers = threading.Event(), threading.Event()

    def open_place(url: str) -> StoragePlace:
        asked.set()
        answers.wait(TIMEOUT_S)
        raise OSError("too late")

    copies = CheckpointCopies(FOLDER, open_place=open_place)
    written(directory, 1)
    copies.follow(directory, url)
    assert asked.wait(TIMEOUT_S)
    (note,) = copies.finish(0.05)
    assert note.startswith("not every checkpoint of the run was copied to its storage within 0.05 s")
    answers.set()
    copies.close()


def test_checkpoint_without_its_manifest_is_no_copy(directory: Path, url: str, tmp_path: Path) -> None:
    path = written(directory, 1)
    place = StoragePlace.at(url).below("x")
    place.put(path)
    assert place.manifest() == (path / MANIFEST).read_bytes()
    (tmp_path / "storage" / "x" / MANIFEST).unlink()
    assert place.manifest() is None
    place.remove()
    place.remove()
    assert place.names() == []


@pytest.fixture
def stored(copies: CheckpointCopies, directory: Path, url: str) -> RunRecord:
    """A run with copies of two checkpoints, and none in its own directory."""
    record = recorded(directory.parent, url)
    assert folder_of(record) == FOLDER
    for iteration in (1, 2):
        written(directory, iteration, value=iteration)
    copies.follow(directory, url)
    assert copies.finish(TIMEOUT_S) == []
    for path in list_checkpoints(directory):
        remove_checkpoint(path)
    return record


def test_missing_checkpoints_are_fetched(stored: RunRecord, directory: Path, url: str) -> None:
    assert fetch_missing(directory.parent, stored, {TRIAL: url}) == [f"{TRIAL}: checkpoint_000002 from {url}"]
    assert [path.name for path in directory.iterdir()] == ["checkpoint_000002"]
    assert fetch_missing(directory.parent, stored, {TRIAL: url}) == []


def test_damaged_copy_is_passed_over(stored: RunRecord, directory: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "storage" / FOLDER / TRIAL / "checkpoint_000002" / "state.json").write_text("{ }")
    assert fetch_missing(directory.parent, stored, {TRIAL: url}) == [f"{TRIAL}: checkpoint_000001 from {url}"]
    assert [path.name for path in directory.iterdir()] == ["checkpoint_000001"]


@pytest.mark.parametrize(
    ("best", "found"),
    [("checkpoint_000001", "checkpoint_000001"), ("checkpoint_000009", "checkpoint_000002")],
)
def test_best_checkpoint_comes_from_the_storage(
    stored: RunRecord, directory: Path, url: str, best: str, found: str
) -> None:
    recorded(directory.parent, url, best_checkpoint=f"{TRIAL}/{best}", best_checkpoint_reward=1.0)
    assert find_checkpoint(directory.parent) == directory / found


@pytest.mark.parametrize("storage", ["s3://bucket/x?endpoint_override=127.0.0.1:9", "file:///"])
def test_storage_of_a_run_that_began_elsewhere_is_not_asked(directory: Path, url: str, storage: str) -> None:
    recorded(directory.parent, url, best_checkpoint=f"{TRIAL}/checkpoint_000001")
    strange = read_run_record(directory.parent)
    strange.trials[0].storage = storage
    strange.write(directory.parent)
    with pytest.raises(ResumeError, match="which no run that you started has used") as caught:
        find_checkpoint(directory.parent)
    assert "--allow-storage" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["../other", "..", "", "a/b", "a\\b", "a%2fb", "%2E%2e", "a\nb", "a\0b", "a%00b"])
def test_names_of_a_record_do_not_lead_out_of_the_storage(name: str, tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="not a valid name of a folder"):
        StoragePlace.at(tmp_path.as_uri()).below(name, "trial")


def test_storage_without_a_copy_leaves_the_error(directory: Path, url: str) -> None:
    recorded(directory.parent, url, best_checkpoint=f"{TRIAL}/checkpoint_000001")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        find_checkpoint(directory.parent)


@pytest.mark.parametrize("bad", ["nothing://x/y", "file://relative", "s3://"])
def test_url_that_is_no_storage_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match=r"storage .* (cannot be opened|names no folder)") as caught:
        check_storage(bad)
    assert caught.value.hint is not None


def test_storage_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot be used"):
        check_storage((tmp_path / "file" / "below").as_uri())
    check_storage((tmp_path / "new").as_uri())
    assert list((tmp_path / "new").iterdir()) == []


def test_silent_storage_is_given_up(tmp_path: Path) -> None:
    answers = threading.Event()

    def silent(progress: Callable[[], None]) -> None:
        answers.wait(TIMEOUT_S)

    with pytest.raises(ResourceError, match=r"storage x has not answered for 0\.05 s"):
        bounded(silent, 0.05, "storage x")
    answers.set()


def test_credentials_are_masked_in_the_record_and_known_to_later_commands(
    stored: RunRecord, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, shown = "s3://name:word@bucket/x", "s3://name:***@bucket/x"
    (directory.parent / "resolved.yaml").write_text(f"dqn:\n  run: DQN\n  storage: {secret}\n")
    recorded(directory.parent, shown, best_checkpoint=f"{TRIAL}/checkpoint_000001")
    with pytest.raises(ResumeError, match=r"the storage s3://name:\*\*\*@bucket/x, which no run that you"):
        find_checkpoint(directory.parent)
    trained_with(storage=secret)
    asked: list[str] = []

    def at(url: str) -> StoragePlace:
        asked.append(url)
        from pyarrow.fs import LocalFileSystem

        return StoragePlace(shown, LocalFileSystem(), str(tmp_path / "storage"))

    monkeypatch.setattr(StoragePlace, "at", at)
    assert find_checkpoint(directory.parent).name == "checkpoint_000001"
    assert asked == [secret]
