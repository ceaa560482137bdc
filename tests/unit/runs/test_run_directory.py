"""A run gets a directory of its own or a clear refusal, and says at any moment what it is and how far it came."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.run_listing import found_at
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, load_plan
from rlexp.errors import ResumeError, UsageError
from rlexp.processes.signals import StopRequest
from rlexp.runs.directories import refuse_unwritable, usual_name
from rlexp.runs.record import RecordedError, RunRecord, Status, read_run_record
from rlexp.runs.run_directory import RunDirectory, trial_parameters
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import choose_display
from rlexp.tuning.run import run_in_session

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


@contextmanager
def created(
    out: Path, stem: str = "pong", name: str | None = None, *, overwrite: bool = False, command: tuple[str, ...] = ()
) -> Iterator[RunDirectory]:
    with RunDirectory.create(out, stem, name, command, overwrite=overwrite) as run:
        run.write()
        yield run


def finished(out: Path, stem: str = "pong", name: str | None = None) -> Path:
    with created(out, stem, name) as run:
        return run.path


def content(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "run.json").read_text()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that ``time.monotonic`` returns; each call of it takes a thousandth."""
    now = [1_000.0]

    def read() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr("time.monotonic", read)
    return now


@pytest.fixture
def trial(make_trial: MakeTrial) -> Trial:
    return make_trial()


@pytest.fixture
def run(tmp_path: Path, trial: Trial) -> Iterator[RunDirectory]:
    """A run that has begun, of one trial."""
    with created(tmp_path) as directory:
        directory.start([trial])
        yield directory


def plan_of(folder: Path, **files: str) -> Plan:
    paths = []
    for name, experiments in files.items():
        paths.append(folder / f"{name}.yaml")
        entry = "{run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}}"
        paths[-1].write_text("".join(f"{experiment}: {entry}\n" for experiment in experiments.split()))
    return load_plan(paths)


def test_a_run_is_named_after_its_only_experiment_else_after_its_first_file(tmp_path: Path) -> None:
    assert usual_name(plan_of(tmp_path, tuned="pong-dqn")) == "pong-dqn"
    assert usual_name(plan_of(tmp_path, tuned="pong-dqn pong-apex")) == "tuned"
    assert usual_name(plan_of(tmp_path, first="pong-dqn", second="pong-apex")) == "first"


def test_the_usual_name_counts_up(tmp_path: Path) -> None:
    assert [finished(tmp_path).name for _ in range(3)] == ["pong", "pong-2", "pong-3"]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("../..", "run"),
        ("--name", "name"),
        (".hidden", "hidden"),
        ("...", "run"),
        ("a:b", "a-b"),
        ("ü" * 200, "ü" * 60),
    ],
)
def test_a_files_name_becomes_a_safe_one(tmp_path: Path, stem: str, name: str) -> None:
    assert finished(tmp_path, stem) == tmp_path / name


def test_unicode_and_spaces_are_fine(tmp_path: Path) -> None:
    assert finished(tmp_path, name="größer als 1").name == "größer als 1"


@pytest.mark.parametrize(
    "name", ["../../x", "a/b", "/abs", "..", ".", ".x", "-x", "", " ", "a:b", "a\\b", "a\nb", "a\0", "x" * 300]
)
def test_a_name_cannot_leave_out(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=r"cannot be the name of a run|is too long") as caught, created(out, name=name):
        pass
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    path = finished(tmp_path, name="mine")
    before = content(path)
    with pytest.raises(UsageError, match="already exists") as caught, created(tmp_path, name="mine"):
        pass
    assert "--overwrite" in str(caught.value.hint)
    assert content(path) == before


@pytest.mark.parametrize("name", [None, "pong"])
def test_overwrite_replaces_a_finished_run(tmp_path: Path, name: str | None) -> None:
    path = finished(tmp_path)
    (path / "old").touch()
    with created(tmp_path, name=name, overwrite=True) as run:
        assert run.path == path
        assert {entry.name for entry in path.iterdir()} == {"run.json", "rlexp.lock"}
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["directory", "file", "link", "another program's", "not even a mapping"])
def test_overwrite_removes_nothing_but_runs(tmp_path: Path, kind: str) -> None:
    precious, taken = tmp_path / "elsewhere" / "precious", tmp_path / "mine"
    finished(tmp_path, name="elsewhere")
    precious.touch()
    if kind == "directory":
        taken.mkdir()
    elif kind == "file":
        taken.touch()
    elif kind != "link":
        taken.mkdir()
        (taken / "run.json").write_text('{"id": 7, "format": "hdf5"}' if kind == "another program's" else "[]")
    else:
        taken.symlink_to(tmp_path / "elsewhere")
    for overwrite in (True, False):
        with pytest.raises(UsageError, match="mine"), created(tmp_path, name="mine", overwrite=overwrite):
            pass
    assert taken.exists()
    assert precious.exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_running_run_is_left_alone_and_its_holder_named(tmp_path: Path, overwrite: bool) -> None:
    with created(tmp_path, name="mine") as run:
        before = {path: path.read_bytes() for path in run.path.iterdir()}
        message = rf"mine is in use by pid {os.getpid()} \(host .+\) since \d\d:\d\d$"
        with pytest.raises(ResumeError, match=message), created(tmp_path, name="mine", overwrite=overwrite):
            pass
        with pytest.raises(ResumeError, match="is in use by"):
            RunDirectory.open(run.path)
        assert {path: path.read_bytes() for path in run.path.iterdir()} == before


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = finished(tmp_path)
    program = f"""
import os, signal
from pathlib import Path
from rlexp.processes.locks import RunLock
lock = RunLock(Path({str(path)!r}))
print("locked", flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ResumeError, match=f"pid {process.pid} "):
            RunDirectory.open(path)
        process.kill()
    RunDirectory.open(path).close()


def test_a_damaged_lock_file_still_locks(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        (run.path / "rlexp.lock").write_text("{")
        with pytest.raises(ResumeError, match="is in use by another process"):
            RunDirectory.open(run.path)


@pytest.mark.parametrize("where", ["file", "file/below", "missing/" + "x" * 300])
def test_impossible_out_is_a_usage_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot create .*") as caught, created(tmp_path / where):
        pass
    assert str(tmp_path / where) in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_impossible_out_is_known_before_anything_is_made(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"cannot create {tmp_path / where}: .*/file is not a directory"):
        refuse_unwritable(tmp_path / where, None, overwrite=False)
    refuse_unwritable(tmp_path / "missing" / "below", None, overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_closed_out_is_known_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "mkdtemp", closed)  # tests may run as root, who may write everywhere
    with pytest.raises(UsageError, match="Permission denied"):
        refuse_unwritable(tmp_path / "results", "name", overwrite=True)


def test_a_name_that_is_taken_is_known_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    refuse_unwritable(tmp_path, "mine", overwrite=True)
    refuse_unwritable(tmp_path, None, overwrite=False)
    with pytest.raises(UsageError, match="already exists and is not a run"):
        refuse_unwritable(tmp_path, "mine", overwrite=False)


def test_a_directory_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises(UsageError, match="Read-only file system"), created(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_files_are_kept_as_given_and_each_can_run_again(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        run.write_experiments(["a: {}\n", "a: {run: DQN}\n"], "b: {}\n")
        assert (run.path / "experiment.yaml").read_text() == "a: {}\n"
        assert (run.path / "experiment-2.yaml").read_text() == "a: {run: DQN}\n"
        assert (run.path / "resolved.yaml").read_text() == "b: {}\n"


def test_run_json_says_what_ran_and_how(tmp_path: Path, make_trial: MakeTrial) -> None:
    trials = [make_trial(0), make_trial(1, seed=8)]
    with created(tmp_path, command=("rlexp", "run", "pong.yaml", "-o", "config.env_config.password=hunter2")) as run:
        run.start(trials)
        said = content(run.path)
    assert said["command"] == ["rlexp", "run", "pong.yaml", "-o", "config.env_config.password=***"]
    assert said["status"] == "RUNNING"
    assert said["seeds"] == [7, 8]
    assert said["versions"]["numpy"]
    assert {"git_commit", "host", "cpus", "started", "ended"} <= said.keys()
    assert [trial["status"] for trial in said["trials"]] == ["PENDING", "PENDING"]
    assert said["trials"][1]["directory"] == "00001-APEX-CartPole-v1"
    assert said["trials"][1]["varied"] == {"lr": 0.001}


def test_parameters_have_the_names_of_keys(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(
        "a: {run: PPO, env: CartPole-v1, stop: {timesteps_total: 9}, config: {lambda: 0.9}}"
    )
    (trial,) = load_plan([tmp_path / "f.yaml"]).trials
    parameters = trial_parameters(trial)
    assert parameters["lambda"] == 0.9
    assert not [name for name in parameters if name.endswith("_")]


def test_a_trials_directory_has_its_parameters_without_secrets(tmp_path: Path, make_trial: MakeTrial) -> None:
    trial = make_trial(env_config={"auth_token": "hunter2", "num_tokens": 3})
    with created(tmp_path) as run:
        run.start([trial])
        parameters = json.loads((run.trial_directory(trial) / "params.json").read_text())
        everything = "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())
    assert (parameters["run"], parameters["env"], parameters["seed"]) == ("APEX", "CartPole-v1", 7)
    assert parameters["env_config"] == {"auth_token": "***", "num_tokens": 3}
    assert "hunter2" not in everything


def test_run_json_records_trial_status(run: RunDirectory, trial: Trial, make_row: MakeRow) -> None:
    run.trial_status(trial, Status.RUNNING)
    for iteration, reward in enumerate([-5.0, 0.0, -2.0, None, float("nan")], start=1):
        run.trial_result(trial, make_row(iteration, reward))
        run.trial_checkpoint(
            trial, run.trial_directory(trial) / f"checkpoint_{iteration:06d}", make_row(iteration, reward)
        )
    run.trial_status(trial, Status.ERROR, RecordedError("ValueError: boom", f"{trial.name}/error.txt"))
    run.finish(Status.ERROR)
    said = content(run.path)
    told = said["trials"][0]
    assert (said["status"], told["status"]) == ("ERROR", "ERROR")
    assert said["ended"] >= said["started"]
    assert (told["iterations"], told["timesteps_total"], told["time_total_s"]) == (5, 5_000, 10.0)
    assert (told["episode_reward_mean"], told["best_episode_reward_mean"]) == (-2.0, 0.0)
    assert told["best_checkpoint"] == f"{trial.name}/checkpoint_000002"
    assert told["error"] == {"summary": "ValueError: boom", "traceback": f"{trial.name}/error.txt"}


def test_a_checkpoint_without_a_reward_is_better_than_none(run: RunDirectory, trial: Trial, make_row: MakeRow) -> None:
    record = run.record.trial(trial.name)
    for iteration, reward, best in [
        (1, None, 1),
        (2, None, 2),
        (3, 1.0, 3),
        (4, None, 3),
        (5, 1.0, 5),
        (6, 0.5, 5),
    ]:
        run.trial_checkpoint(trial, Path(f"checkpoint_{iteration:06d}"), make_row(iteration, reward))
        assert record.best_checkpoint == f"{trial.name}/checkpoint_{best:06d}"


@pytest.mark.parametrize(
    "checkpoints",
    [
        [(25.0, 25.7, 1), (134.1, None, 2)],  # one that was not played had far more in training
        [(9.0, None, 1), (1.0, 3.0, 1), (8.0, 10.0, 3), (9.0, None, 3)],
        [(20.0, 200.0, 1), (100.0, None, 1), (100.0, 150.0, 1), (250.0, None, 4)],
        [(300.0, 25.0, 1), (30.0, None, 2), (400.0, 29.0, 2)],  # it was played: its training does not count
        [(None, None, 1), (-200.0, None, 2), (None, -150.0, 3), (-150.0, None, 4), (math.nan, None, 4)],
    ],
)
def test_the_best_checkpoint_has_the_highest_reward_played_or_else_of_training(
    run: RunDirectory, trial: Trial, checkpoints: list[tuple[float | None, float | None, int]], make_row: MakeRow
) -> None:
    record = run.record.trial(trial.name)
    for iteration, (reward, evaluation, best) in enumerate(checkpoints, start=1):
        row = dict(make_row(iteration, reward))
        if evaluation is not None:
            row["evaluation"] = {"episode_reward_mean": evaluation}
        run.trial_checkpoint(trial, Path(f"checkpoint_{iteration:06d}"), row)
        assert record.best_checkpoint == f"{trial.name}/checkpoint_{best:06d}"


def test_results_reach_run_json_within_seconds(
    clock: list[float], run: RunDirectory, trial: Trial, make_row: MakeRow
) -> None:
    run.trial_result(trial, make_row(1))
    assert content(run.path)["trials"][0]["iterations"] == 0
    clock[0] += 6.0
    run.trial_result(trial, make_row(2))
    assert content(run.path)["trials"][0]["iterations"] == 2


def test_open_reads_the_record(run: RunDirectory, trial: Trial, make_row: MakeRow) -> None:
    run.trial_result(trial, make_row(3))
    run.trial_status(trial, Status.ERROR, RecordedError("ValueError: boom"))
    run.finish(Status.STOPPED)
    run.close()
    with RunDirectory.open(run.path) as opened:
        assert opened.record == run.record


def test_status_reaches_run_json_within_a_second_though_nothing_else_happens(
    clock: list[float], run: RunDirectory, trial: Trial
) -> None:
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
    run: RunDirectory, trial: Trial, make_row: MakeRow
) -> None:
    run.trial_status(trial, Status.RUNNING)
    run.write()
    folder = run.trial_directory(trial)
    rows = [make_row(n, reward) for n, reward in [(1, 4.0), (2, 9.0), (3, 5.0)]]
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for iteration in (2, 3):
        (folder / f"checkpoint_{iteration:06d}").mkdir()
    run.close()
    with RunDirectory.open(run.path) as opened:
        record = opened.record.trial(trial.name)
    assert (record.iterations, record.episode_reward_mean, record.best_episode_reward_mean) == (3, 5.0, 9.0)
    assert (record.best_checkpoint, record.best_checkpoint_reward) == (f"{trial.name}/checkpoint_000002", 9.0)


class Interrupted:
    """A Ray during whose start Ctrl-C comes."""

    is_abandoned = False
    is_joined = False

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        raise AssertionError


def interrupted(run: RunDirectory, stdout: io.StringIO | None = None) -> int:
    display = choose_display(stdout or io.StringIO(), io.StringIO(), {}, json=False, quiet=True)
    with StopRequest(lambda: None) as request:
        return run_in_session(FixedTrials([]), [], run, display, request, Interrupted())  # type: ignore[arg-type]


def test_ctrl_c_before_anything_has_begun_removes_a_new_run_but_no_other(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        assert interrupted(run) == 130
        assert not run.path.exists()
    with created(tmp_path) as run:
        run.finish(Status.ERROR)
    with RunDirectory.open(run.path) as opened:
        assert interrupted(opened) == 130
    assert read_run_record(run.path).status is Status.STOPPED


def test_a_second_ctrl_c_says_what_is_kept_and_leaves_run_and_trials_stopped(
    tmp_path: Path, make_trial: MakeTrial, make_row: MakeRow
) -> None:
    trial, stdout = make_trial(), io.StringIO()
    with created(tmp_path) as run:
        run.start([trial])
        run.trial_status(trial, Status.RUNNING)
        run.trial_result(trial, make_row(3))
        (run.trial_directory(trial) / "checkpoint_000002").mkdir()
        assert interrupted(run, stdout) == 130
    record = read_run_record(run.path)
    assert (record.status, record.trials[0].status) == (Status.STOPPED, Status.STOPPED)
    assert "stopped: resume continues from checkpoint_000002" in stdout.getvalue()
    assert f"next: rlexp resume {run.path}" in stdout.getvalue()
    assert [trial.status for trial in found_at(run.path)] == [found_at(tmp_path)[0].status] == ["STOPPED"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("varied", 3),
        ("iterations", "many"),
        ("best_checkpoint_reward", "high"),
        ("directory", [1]),
        ("best_checkpoint", [1]),
        ("status", "DANCING"),
        ("error", "boom"),
        ("of_another_program", 1),
    ],
)
def test_a_record_with_other_values_is_damaged(run: RunDirectory, key: str, value: object) -> None:
    said = content(run.path)
    said["trials"][0][key] = value
    (run.path / "run.json").write_text(json.dumps(said))
    with pytest.raises(ResumeError, match=rf"run\.json is damaged \(trials\.0\.{key}: "):
        read_run_record(run.path)


def test_a_foreign_directory_and_a_foreign_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="is not a run of rlexp"):
        RunDirectory.open(tmp_path)
    path = finished(tmp_path)
    (path / "run.json").write_text('{"format": 99}')
    with pytest.raises(ResumeError, match="another version"):
        read_run_record(path)


def test_a_run_json_that_cannot_be_replaced_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with created(tmp_path) as run:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space"):
                run.finish(Status.TERMINATED)
        assert content(run.path)["status"] == "RUNNING"
        assert {path.name for path in run.path.iterdir()} == {"run.json", "rlexp.lock"}


def test_a_run_that_never_began_can_be_discarded(tmp_path: Path) -> None:
    with created(tmp_path) as run:
        run.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("has_result", "is_left"), [(False, []), (True, ["run"])])
def test_a_run_that_a_signal_ends_before_its_first_result_leaves_nothing(
    has_result: bool, is_left: list[str], tmp_path: Path, trial: Trial
) -> None:
    def train() -> None:
        with RunDirectory.create(tmp_path, "run", None, [], overwrite=False) as run:
            run.start([trial])
            run.record.trials[0].iterations = int(has_result)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert [path.name for path in tmp_path.iterdir()] == is_left
