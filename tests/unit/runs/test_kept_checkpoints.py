"""Which checkpoints there are: the one a path means, copies, those that prune leaves, and those packed for a board."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlexp.cli import app
from rlexp.commands import results
from rlexp.config.load import load_plan
from rlexp.errors import CheckpointError, ResumeError
from rlexp.processes.locks import RunLock
from rlexp.runs.checkpoint_contents import read_checkpoint, verify_checkpoint
from rlexp.runs.checkpoints import (
    checkpoint_directory,
    iteration_of_packed,
    list_checkpoints,
    newest_checkpoint,
    pack_checkpoint,
    unpack_checkpoint,
    write_checkpoint,
)
from rlexp.runs.kept_checkpoints import NEWEST_KEPT, copy_checkpoint, find_checkpoint, starting_point
from rlexp.runs.record import RunRecord, TrialRecord, read_run_record


def written(trial: Path, *iterations: int) -> Path:
    trial.mkdir(exist_ok=True)
    for iteration in iterations:
        weights = {"weights": {"w": np.full(3, iteration, np.float32)}}
        path = write_checkpoint(checkpoint_directory(trial, iteration), weights, {"by": trial.name}, {})
    return path


def by(path: Path | None) -> str:
    assert path is not None
    return str(read_checkpoint(path).state["by"])


@pytest.mark.parametrize("own", [(2,), (5,), (3, 8, 9)])
def test_copied_checkpoint_is_the_newest(own: tuple[int, ...], tmp_path: Path) -> None:
    donors = written(tmp_path / "donor", 5)
    written(tmp_path / "taker", *own)
    copy = copy_checkpoint(donors, tmp_path / "taker")
    assert newest_checkpoint(tmp_path / "taker") == copy
    assert by(copy) == "donor"
    assert (read_checkpoint(copy).arrays["weights"]["w"] == 5).all()
    assert [path.name for path in list_checkpoints(tmp_path / "taker")][1:] == [
        f"checkpoint_{iteration:06d}" for iteration in sorted(own, reverse=True) if iteration < 5
    ]
    assert by(donors) == "donor"


def test_damaged_checkpoint_is_not_copied(tmp_path: Path) -> None:
    donors = written(tmp_path / "donor", 5)
    (donors / "state.json").unlink()
    own = written(tmp_path / "taker", 8)
    with pytest.raises(CheckpointError):
        copy_checkpoint(donors, tmp_path / "taker")
    assert newest_checkpoint(tmp_path / "taker") == own
    assert [path.name for path in (tmp_path / "taker").iterdir()] == [own.name]


TRIAL = "00000-DQN"
FIRST, SECOND = (f"{TRIAL}/checkpoint_00000{number}" for number in (1, 2))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a run of one trial and two checkpoints, and another trial beside it."""
    for path in (tmp_path / "run" / FIRST, tmp_path / "run" / SECOND, tmp_path / "other" / "checkpoint_000001"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, {"weights": {"w": np.ones(1)}}, {}, {})
    return tmp_path


def recorded(out: Path, **trial: Any) -> Path:
    known: dict[str, Any] = {"name": TRIAL, "directory": TRIAL, "seed": 0, "varied": {}} | trial
    record = RunRecord("run", [], {}, None, "host", 2, "2026-01-01T00:00:00+00:00", trials=[TrialRecord(**known)])
    record.write(out / "run")
    return out / "run"


def test_find_checkpoint_returns_best_else_newest(out: Path) -> None:
    assert find_checkpoint(recorded(out, best_checkpoint=FIRST)) == out / "run" / FIRST
    assert find_checkpoint(recorded(out)) == out / "run" / SECOND


def test_newest_is_found_where_the_best_was_removed(out: Path) -> None:
    removed = f"{TRIAL}/checkpoint_000009"
    assert find_checkpoint(recorded(out, best_checkpoint=removed, best_checkpoint_reward=9.0)) == out / "run" / SECOND


@pytest.mark.parametrize("directory", ["../other", "..", "", "/", "a\0b"])
def test_trial_outside_the_run_is_refused(out: Path, directory: str) -> None:
    with pytest.raises(ResumeError, match="points elsewhere"):
        find_checkpoint(recorded(out, directory=directory))


@pytest.mark.parametrize(
    "best", ["../other/checkpoint_000001", f"{TRIAL}/../../other", f"{TRIAL}/..", TRIAL, "/etc", f"{TRIAL}/\0"]
)
def test_checkpoint_outside_the_run_is_refused(out: Path, best: str) -> None:
    with pytest.raises(ResumeError, match="points elsewhere"):
        find_checkpoint(recorded(out, best_checkpoint=best))


def test_directory_that_is_no_run_has_a_hint_to_one_in_it(out: Path) -> None:
    recorded(out)
    (out / "empty").mkdir()
    (out / "run.yaml").touch()
    inside = f"name a run in it, for example {out / 'run'}; rlexp ls {out} lists them"
    list_them = "rlexp ls DIR lists runs"
    for look, path, message, hint in (
        (find_checkpoint, out, "neither a run", inside),
        (find_checkpoint, out / "empty", "neither a run", list_them),
        (find_checkpoint, out / "nowhere", f"^path {out / 'nowhere'} does not exist", list_them),
        (read_run_record, out, "is not a run of rlexp", inside),
        (read_run_record, out / "other", "is not a run of rlexp", list_them),
        (
            read_run_record,
            out / "run.yaml",
            "is a file, not the folder of a run",
            f"did you mean {out / 'run'}? {list_them}",
        ),
        (read_run_record, out / "nowhere", f"^path {out / 'nowhere'} does not exist", list_them),
    ):
        with pytest.raises(ResumeError, match=message) as caught:
            look(path)
        assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("stop", "refused"),
    [
        ({"timesteps_total": 400}, "has timesteps_total 400, and stop.timesteps_total is 400"),
        ({"timesteps_total": 401}, None),
        (
            {"training_iteration": 1, "timesteps_total": 1e6},
            "has training_iteration 2, and stop.training_iteration is 1",
        ),
        ({"episode_reward_mean": 1.0}, None),
    ],
)
def test_starting_point_at_which_the_trial_would_stop_is_refused(
    stop: dict[str, float], refused: str | None, tmp_path: Path
) -> None:
    row = {"training_iteration": 2, "timesteps_total": 400, "episode_reward_mean": 9.0}
    checkpoint = tmp_path / "checkpoint_000002"
    write_checkpoint(checkpoint, {"weights": {"w": np.ones(1)}}, {}, {"metrics": row})
    file = tmp_path / "warm.yaml"
    file.write_text(
        json.dumps({"warm": {"run": "DQN", "env": "CartPole-v1", "restore": str(checkpoint), "stop": stop}})
    )
    (trial,) = load_plan([file]).trials
    if refused is None:
        assert starting_point(trial) == checkpoint
        return
    with pytest.raises(ResumeError, match=refused) as caught:
        starting_point(trial)
    assert str(caught.value).startswith("restore: ")


REWARDS = (1.0, 9.0, 2.0, 3.0, 4.0, 5.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one trial with a checkpoint for each of REWARDS; the best is the second."""
    run = tmp_path / "run"
    (run / TRIAL).mkdir(parents=True)
    trial = TrialRecord(TRIAL, TRIAL, 0, {})
    for number, reward in enumerate(REWARDS, start=1):
        path, row = run / TRIAL / f"checkpoint_{number:06d}", {"episode_reward_mean": reward}
        write_checkpoint(path, {"weights": {"w": np.ones(100)}}, {}, {"metrics": row})
        trial.add_checkpoint(path, row)
    RunRecord("run", [], {}, None, "host", 2, "2026-01-01T00:00:00+00:00", trials=[trial]).write(run)
    return run


def prune(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["prune", *map(str, arguments), "--json"])
    if isinstance(result.exception, ResumeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def kept(run: Path) -> list[int]:
    return sorted(int(path.name[-6:]) for path in list_checkpoints(run / TRIAL))


@pytest.mark.parametrize(
    ("options", "left"), [([], [2, 4, 5, 6]), (["--keep", 1], [2, 6]), (["--keep", 9], [1, 2, 3, 4, 5, 6])]
)
def test_the_newest_and_the_best_stay(run: Path, options: list[object], left: list[int]) -> None:
    promised = prune(run, *options, "--dry-run")
    assert kept(run) == [1, 2, 3, 4, 5, 6]
    done = prune(run, *options)
    assert kept(run) == left
    assert (promised["removed"], done["removed"]) == (False, True)
    assert promised["runs"] == done["runs"]
    assert len(done["runs"][0]["checkpoints"]) == 6 - len(left)
    assert (done["runs"][0]["bytes"] > 0) == (len(left) < 6)
    assert find_checkpoint(run).name == "checkpoint_000002"
    assert [verify_checkpoint(path).sequence for path in list_checkpoints(run / TRIAL)] == left[::-1]


def test_the_best_that_run_json_names_stays_too(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    content["trials"][0]["best_checkpoint"] = f"{TRIAL}/checkpoint_000001"
    (run / "run.json").write_text(json.dumps(content))
    prune(run, "--keep", 1)
    assert kept(run) == [1, 2, 6]


@pytest.mark.parametrize("damage", ["no manifest", "cut", "no file"])
def test_what_is_damaged_counts_neither_as_newest_nor_as_best(run: Path, damage: str) -> None:
    for number in (2, 5, 6):
        checkpoint = run / TRIAL / f"checkpoint_{number:06d}"
        file = next(checkpoint.glob("*.safetensors")) if damage != "no manifest" else checkpoint / "manifest.json"
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:-1])
        else:
            file.unlink()
    prune(run, "--keep", 1)
    assert kept(run) == [2, 4, 5, 6], "run.json names the second; the fourth is whole, and the newest that is"


def linked_trial(run: Path) -> None:
    (run / TRIAL).rename(run.parent / "elsewhere")
    (run / TRIAL).symlink_to(run.parent / "elsewhere")


def linked_checkpoint(run: Path) -> None:
    (run / TRIAL / "checkpoint_000001").rename(run.parent / "elsewhere")
    (run / TRIAL / "checkpoint_000001").symlink_to(run.parent / "elsewhere")


def trial_elsewhere(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / TRIAL).rename(run.parent / "elsewhere")
    (run / "run.json").write_text(text.replace(f'"directory": "{TRIAL}"', '"directory": "../elsewhere"'))


def other_program(run: Path) -> None:
    (run / "run.json").write_text('{"format": "hdf5"}')


def linked_lock(run: Path) -> None:
    (run / "rlexp.lock").symlink_to(run / "run.json")


@pytest.mark.parametrize("make", [linked_trial, linked_checkpoint, trial_elsewhere, other_program, linked_lock])
def test_nothing_of_a_strange_run_is_removed(run: Path, make: Callable[[Path], None]) -> None:
    make(run)
    before = set(run.parent.rglob("*"))
    if make is trial_elsewhere:
        assert prune(run)["runs"][0]["checkpoints"] == []
    else:
        with pytest.raises(ResumeError):
            prune(run)
    assert before <= set(run.parent.rglob("*"))


def test_one_run_in_use_keeps_all_of_them(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    RunRecord("other", [], {}, None, "host", 2, "2026-01-01T00:00:00+00:00").write(tmp_path / "other")
    with RunLock(tmp_path / "other"), pytest.raises(ResumeError, match="in use"):
        prune(run, tmp_path / "other")
    assert kept(run) == [1, 2, 3, 4, 5, 6]


def test_prune_keeps_as_many_as_training() -> None:
    assert inspect.signature(results.prune).parameters["keep"].default == NEWEST_KEPT


KEY = b"key of the task"
ROOM = 1 << 20


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    arrays: dict[str, dict[str, np.ndarray]] = {
        "learner": {"w": np.arange(6, dtype=np.float32)},
        "weights": {"w": np.ones((2, 3))},
    }
    path = write_checkpoint(checkpoint_directory(tmp_path, 12), arrays, {"a": 1.5}, {"name": "é"})
    (path / "notes.txt").write_text("no part of a checkpoint")
    return pack_checkpoint(path, KEY)


def signed(body: bytes) -> bytes:
    return body + hmac.new(KEY, body, hashlib.sha256).digest()


def container(files: list[list[object]], content: bytes) -> bytes:
    header = json.dumps({"files": files}).encode()
    return signed(b"RLXC1" + len(header).to_bytes(4, "big") + header + content)


def test_checkpoint_comes_back_whole(packed: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "trial"
    path = unpack_checkpoint(packed, folder, KEY, ROOM)
    assert path == folder / "checkpoint_000012"
    checkpoint = read_checkpoint(path)
    assert (checkpoint.sequence, checkpoint.state, checkpoint.metadata) == (12, {"a": 1.5}, {"name": "é"})
    assert checkpoint.arrays["learner"]["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert iteration_of_packed(packed, KEY) == 12
    assert not (path / "notes.txt").exists()
    assert [each.name for each in folder.iterdir()] == [path.name]


def test_checkpoint_of_the_same_iteration_is_replaced(packed: bytes, tmp_path: Path) -> None:
    write_checkpoint(checkpoint_directory(tmp_path, 12), {}, {"a": 2}, {})
    assert read_checkpoint(unpack_checkpoint(packed, tmp_path, KEY, ROOM)).state == {"a": 1.5}


@pytest.mark.parametrize("place", [0, 7, 200, -200, -1])
def test_changed_bytes_are_refused(packed: bytes, tmp_path: Path, place: int) -> None:
    changed = bytearray(packed)
    changed[place] ^= 1
    with pytest.raises(CheckpointError, match="not signed"):
        unpack_checkpoint(bytes(changed), tmp_path / "new", KEY, ROOM)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 100])
def test_anything_else_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not signed"):
        unpack_checkpoint(content, tmp_path / "new", KEY, ROOM)


def test_other_keys_and_sizes_are_refused(packed: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not signed"):
        unpack_checkpoint(packed, tmp_path / "new", b"another key", ROOM)
    with pytest.raises(CheckpointError, match="more than 10"):
        unpack_checkpoint(packed, tmp_path / "new", KEY, 10)


@pytest.mark.parametrize("name", ["../state.json", "/etc/state.json", "code.pkl", "a/b.safetensors", ".bashrc", 7])
def test_signed_container_writes_files_of_a_checkpoint_only(name: object, tmp_path: Path) -> None:
    content = container([[name, 2, hashlib.sha256(b"{}").hexdigest()]], b"{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack_checkpoint(content, tmp_path / "a" / "b", KEY, ROOM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "content"), [(2, b"{}x"), (3, b"{}"), (-1, b"{}"), ("2", b"{}"), (1 << 40, b"{}"), (0, b"{}")]
)
def test_sizes_that_do_not_fit_are_refused(size: object, content: bytes, tmp_path: Path) -> None:
    packed = container([["state.json", size, hashlib.sha256(b"{}").hexdigest()]], content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack_checkpoint(packed, tmp_path / "new", KEY, ROOM)


def test_container_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    packed = container([["state.json", 2, hashlib.sha256(b"{}").hexdigest()]], b"{}")
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        unpack_checkpoint(packed, tmp_path / "new", KEY, ROOM)
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(CheckpointError, match="cannot be read"):
        iteration_of_packed(packed, KEY)
