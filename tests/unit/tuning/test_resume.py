"""What ``rlexp resume`` refuses, before Ray is started and anything is changed."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.config.load import load_plan, resolved_yaml
from rlexp.errors import ResumeError
from rlexp.files import to_json
from rlexp.runs.record import Status, read_run_record
from rlexp.runs.resuming import recorded_trials
from rlexp.runs.rows import last_row
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning.assignment import assignment_of
from rlexp.tuning.request import TrainingRequest
from rlexp.tuning.resume import resume_run
from rlexp.user_code.memory import remember_plan
from tests.lab.trials import rows_of, trials_of


@contextmanager
def started(tmp_path: Path, trials: Sequence[Trial]) -> Iterator[RunDirectory]:
    """Start a run of the trials of the experiment in ``tmp_path``, as ``rlexp train`` does."""
    plan = load_plan([tmp_path / "experiment.yaml"])
    remember_plan(plan)
    with RunDirectory.create(tmp_path / "out", "run", None, [], overwrite=False) as directory:
        directory.write_experiments([""], resolved_yaml(plan))
        directory.start(trials)
        yield directory


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose only trial has reached its stop, with a checkpoint of each iteration."""
    trials = trials_of(tmp_path, checkpoint_freq=1, stop={"timesteps_total": 80})
    with started(tmp_path, trials) as directory:
        rows = rows_of(assignment_of(trials[0], directory, FixedTrials(trials)), monkeypatch)
        lines = "".join(to_json(row) + "\n" for row in rows)
        (directory.trial_directory(trials[0]) / "result.json").write_text(lines, encoding="utf-8")
        directory.trial_status(trials[0], Status.TERMINATED)
        directory.finish(Status.TERMINATED)
        return directory.path


def resume(run: Path, *overrides: str) -> int:
    return resume_run(TrainingRequest("resume", path=run, overrides=overrides), QuietDisplay(sys.stdout))


def content(run: Path) -> dict[str, Any]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_resume_refuses_run_that_has_reached_its_stop(run: Path) -> None:
    with pytest.raises(ResumeError, match=r"every trial of .* has reached its stop") as caught:
        resume(run, "stop.timesteps_total=60")
    assert caught.value.message.endswith("has reached its stop: timesteps_total reached 60")
    assert caught.value.hint == "-o stop.timesteps_total=... sets a later one"


def test_resume_names_the_metric_that_ended_the_run(run: Path) -> None:
    with pytest.raises(ResumeError, match=r"its stop: training_iteration reached 1$") as caught:
        resume(run, "stop.timesteps_total=1e6", "stop.training_iteration=1")
    assert caught.value.hint == "-o stop.training_iteration=... sets a later one"


def test_run_killed_before_run_json_had_its_end_is_ended(run: Path) -> None:
    record = read_run_record(run)
    record.status, record.trials[0].status = Status.RUNNING, Status.RUNNING
    record.write(run)
    assert resume(run) == 0
    record = read_run_record(run)
    assert record.status is Status.TERMINATED
    (trial,) = record.trials
    row = last_row(run / trial.directory)
    assert row is not None
    assert trial.status is Status.TERMINATED
    assert (trial.iterations, trial.timesteps_total) == (row["training_iteration"], row["timesteps_total"])
    assert trial.best_checkpoint == f"{trial.name}/checkpoint_{trial.iterations:06d}"


@pytest.mark.parametrize(("override", "said"), [("lr=0.5", "lr 0.001 → 0.5"), ("n_step=7", "n_step 1 → 7")])
def test_resume_refuses_changes_of_keys_used_in_training(run: Path, override: str, said: str) -> None:
    before = content(run)
    with pytest.raises(ResumeError, match=f"00000-DQN.* cannot be resumed with other keys: {said}") as caught:
        resume(run, override, "stop.timesteps_total=1000")
    assert content(run) == before
    assert caught.value.hint is not None
    assert {"stop", "num_workers", "checkpoint_freq", "lr"} - set(re.findall(r"[\w.]+", caught.value.hint)) == {"lr"}


@pytest.mark.parametrize(
    ("override", "key"), [("n_step=3", "n_step"), ("config.n_step={grid_search: [1, 2]}", "n_step"), ("seed=3", "seed")]
)
def test_resume_error_names_the_key_in_which_trials_differ(tmp_path: Path, override: str, key: str) -> None:
    trials = trials_of(tmp_path, {"n_step": {"grid_search": [1, 2]}})
    with started(tmp_path, trials) as directory:
        before = content(directory.path)
    with pytest.raises(ResumeError, match=f"-o {re.escape(override)}: {key} cannot change when .* is resumed"):
        resume(directory.path, override)
    assert content(directory.path) == before


def test_resume_compares_resolved_file_with_the_checkpoint(run: Path) -> None:
    resolved = run / "resolved.yaml"
    text = resolved.read_text(encoding="utf-8")
    resolved.write_text(
        text.replace("gamma: 0.99", "gamma: 0.5").replace("timesteps_total: 80", "timesteps_total: 1000")
    )
    with pytest.raises(ResumeError, match=r"gamma 0\.99 → 0\.5"):
        resume(run)


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("a: [", "not valid YAML"), ("1", "must be a mapping")])
def test_damaged_resolved_file_is_a_file_of_the_run(run: Path, text: str, said: str) -> None:
    (run / "resolved.yaml").write_text(text)
    with pytest.raises(ResumeError, match=f"run is damaged or missing: .*resolved.yaml.*{said}") as caught:
        resume(run, "stop.timesteps_total=1000")
    assert "rlexp evaluate, rlexp compare and rlexp logs do not need it" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("file", "mode", "message"), [("", 0o777, "may be written"), ("run.json", 0o666, r"run\.json may be written")]
)
def test_resume_refuses_what_is_writable_by_all(run: Path, file: str, mode: int, message: str) -> None:
    (run / file).chmod(mode)
    with pytest.raises(ResumeError, match=f"{message} by every user"):
        resume(run, "stop.timesteps_total=1000")


def test_resume_refuses_run_of_another_user(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(ResumeError, match="belongs to another user"):
        resume(run, "stop.timesteps_total=1000")


def test_resume_refuses_link_in_place_of_a_written_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    for path in (run / "rlexp.lock", next(run.glob("*/result.json"))):
        kept = path.read_bytes()
        path.unlink()
        path.symlink_to(tmp_path / "precious")
        with pytest.raises(ResumeError, match="is a link"):
            resume(run, "stop.timesteps_total=1000")
        path.unlink()
        path.write_bytes(kept)
    assert (tmp_path / "precious").read_text() == "precious"


def test_resume_refuses_pipe_in_place_of_a_file(run: Path) -> None:
    (run / "resolved.yaml").unlink()
    os.mkfifo(run / "resolved.yaml")
    with pytest.raises(ResumeError, match="neither a file nor a directory"):
        resume(run, "stop.timesteps_total=1000")


@pytest.mark.parametrize(
    ("of_run", "of_trial", "message"),
    [
        ({}, {"directory": "../other"}, "points elsewhere"),
        ({}, {"name": "../../other"}, "points elsewhere"),
        ({}, {"name": "\x1b[2J"}, "points elsewhere"),
        ({"imports": ["..evil"]}, {}, "names code that you have not trained with"),
        ({"imports": [""]}, {}, "names code that you have not trained with"),
    ],
)
def test_resume_refuses_record_that_names_what_is_not_of_the_run(
    run: Path, of_run: dict[str, Any], of_trial: dict[str, Any], message: str
) -> None:
    record = json.loads((run / "run.json").read_text()) | of_run
    record["trials"][0] |= of_trial
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(ResumeError, match=message):
        resume(run, "stop.timesteps_total=1000")


def test_resume_refuses_run_without_an_intact_checkpoint(run: Path) -> None:
    for manifest in run.rglob("manifest.json"):
        manifest.write_text("{")
    with pytest.raises(ResumeError, match="is damaged"):
        resume(run, "stop.timesteps_total=1000")
    assert list(run.rglob("manifest.json"))


def test_recorded_trials_keep_their_names_in_any_order_of_grids(tmp_path: Path) -> None:
    grids = {"n_step": {"grid_search": [1, 2]}, "gamma": {"grid_search": [0.9, 0.8]}, "buffer_size": 50}
    trials = trials_of(tmp_path, grids, num_samples=2)
    with started(tmp_path, trials) as directory:
        pass
    resolved = load_plan([directory.path / "resolved.yaml"])
    assert [trial.name for trial in resolved.trials] != [trial.name for trial in trials]
    again = list(recorded_trials(directory.path, resolved, read_run_record(directory.path)))
    assert [(trial.index, trial.name, trial.experiment) for trial in again] == [
        (trial.index, trial.name, trial.experiment) for trial in trials
    ]


@pytest.mark.parametrize(
    ("num_samples", "message"), [(1, "does not make the trial 00001-"), (3, "makes a trial 00002-")]
)
def test_a_resumed_run_has_the_same_trials(tmp_path: Path, num_samples: int, message: str) -> None:
    with started(tmp_path, trials_of(tmp_path, {}, num_samples=2)) as directory:
        pass
    resolved = load_plan([directory.path / "resolved.yaml"], [f"num_samples={num_samples}"])
    with pytest.raises(ResumeError, match=message) as raised:
        list(recorded_trials(directory.path, resolved, read_run_record(directory.path)))
    assert "do not change num_samples" in (raised.value.hint or "")


def test_trials_of_a_resumed_run_import_what_was_allowed_not_from_folders_that_it_names(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(record | {"module_folders": [str(tmp_path)]}), encoding="utf-8")
    assigned: list[UserModules] = []

    def assign(source: FixedTrials, trials: list[Trial], directory: RunDirectory, *others: object) -> int:
        assigned.extend(assignment_of(trial, directory, source).modules for trial in trials)
        return 0

    monkeypatch.setattr("rlexp.tuning.resume.make_session", lambda *arguments: None)
    monkeypatch.setattr("rlexp.tuning.resume.run_in_session", assign)
    assert resume(run, "stop.timesteps_total=160") == 0
    assert assigned == [UserModules(folders=(str(Path(__file__).parents[3]),), decided=("tests.lab.envs",))]
