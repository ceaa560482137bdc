"""What crosses to a trial's process: its request, and the files of a trial that does not have the run's directory."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import pytest

import rlexp
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.commands import training
from rlexp.errors import EnvError
from rlexp.runs.checkpoint_contents import read_checkpoint, verify_checkpoint
from rlexp.runs.checkpoints import list_checkpoints, newest_checkpoint
from rlexp.runs.keeper import Keeper, KeeperLostError
from rlexp.runs.trial_files import ERROR_FILE, STOP_FILE
from rlexp.tuning import assignment as keeper_actor
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT, Assignment, RayKeeperLink, keeper_error, started_keeper
from rlexp.tuning.request import OPTIONS, Source, TrainingRequest
from rlexp.tuning.trainable import ExperimentTrainable
from tests.lab.trials import InlineLink, assigned

STOP = {"training_iteration": 2}


def begun(assignment: Assignment) -> ExperimentTrainable:
    process = ExperimentTrainable.__new__(ExperimentTrainable)  # Tune's own part of a Trainable is not needed
    process.setup({ASSIGNMENT: assignment})
    process.begin()
    return process


def trained(assignment: Assignment) -> list[dict[str, Any]]:
    """Train a trial to its end in this process; return what it reports."""
    process = begun(assignment)
    reports: list[dict[str, Any]] = []
    while not (reports and reports[-1]["done"]):
        reports.append(process.step())
    process.cleanup()
    return reports


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Assignment], Assignment]:
    """Return an assignment whose trial reaches its files by a Keeper in this process."""
    monkeypatch.setattr(trainable, "RayTaskPool", InlineTaskPool)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()

    def sent(assignment: Assignment) -> Assignment:
        link = InlineLink(Keeper(assignment.directory.parent))
        monkeypatch.setattr(keeper_actor, "RayKeeperLink", lambda name: link)
        return replace(assignment, keeper="keeper")

    return sent


def test_trial_with_sent_files_reports_and_keeps_what_one_with_shared_files_does(
    inline: Callable[[Assignment], Assignment], tmp_path: Path
) -> None:
    weights = []
    for name, change in (("shared", replace), ("sent", inline)):
        (tmp_path / name).mkdir()
        with assigned(tmp_path / name, stop=STOP, checkpoint_freq=1, keep_checkpoints_num=1) as assignment:
            reports = trained(change(assignment))
        newest = newest_checkpoint(assignment.directory)
        assert reports[-1]["checkpoint"] == str(newest)
        assert newest is not None
        weights.append({key: array.tobytes() for key, array in read_checkpoint(newest).copies("weights").items()})
        assert len(list_checkpoints(assignment.directory)) == 1
    assert weights[0] == weights[1]
    assert not list((tmp_path / "node").iterdir())


def test_restarted_trial_continues_from_the_drivers_checkpoint(
    inline: Callable[[Assignment], Assignment], tmp_path: Path
) -> None:
    with assigned(tmp_path, stop=STOP, checkpoint_freq=1) as assignment:
        sent = inline(assignment)
        killed = begun(sent)
        assert killed.step()["checkpoint"] is not None
        (report,) = trained(sent)
        killed.cleanup()
    assert report["row"]["training_iteration"] == 2
    assert "continues from checkpoint_000001" in report["events"]


def test_stop_and_error_pass_through_the_keeper(inline: Callable[[Assignment], Assignment], tmp_path: Path) -> None:
    with assigned(tmp_path) as assignment:
        (assignment.directory.parent / STOP_FILE).touch()
        report = trained(inline(assignment))[-1]
        assert report["stopped"]
        assert report["checkpoint"] == str(newest_checkpoint(assignment.directory))
    (tmp_path / "failing").mkdir()
    with assigned(tmp_path / "failing", env="tests.lab.envs:LateRaisingEnv") as assignment:
        with pytest.raises(EnvError):
            trained(inline(assignment))
        assert "LateRaisingEnv" in (assignment.directory / ERROR_FILE).read_text()


def test_error_of_a_lost_keeper_is_known_at_the_driver(tmp_path: Path) -> None:
    text = "ray::ExperimentTrainable.train()\nrlexp.runs.files.keeper_link.KeeperLostError: the Keeper is lost: why"
    with assigned(tmp_path) as assignment:
        trial: Any = SimpleNamespace(config={ASSIGNMENT: assignment}, get_error=lambda: RuntimeError(text))
        assert keeper_error(trial) is None
        trial.config[ASSIGNMENT] = replace(assignment, keeper="keeper")
        found = keeper_error(trial)
        assert found is not None
        assert found.summary == "the Keeper is lost: why"
        trial.get_error = lambda: None
        assert keeper_error(trial) is None


class TrialProcess:
    """A process that trains a trial, as an actor."""

    def run(self, assignment: Assignment) -> list[str | None]:
        with patch.object(trainable, "RayTaskPool", InlineTaskPool):
            return [report["checkpoint"] for report in trained(assignment)]


@pytest.mark.ray
@pytest.mark.cluster_slow
@pytest.mark.timeout(600)
def test_trial_in_a_process_of_ray_sends_its_files(ray_session: None, tmp_path: Path) -> None:
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    with (
        assigned(tmp_path, env="CartPole-v1", stop=STOP, checkpoint_freq=1) as assignment,
        started_keeper(assignment.directory.parent) as keeper,
    ):
        process: Any = ray.remote(num_cpus=0)(TrialProcess).remote()
        found = ray.get(process.run.remote(replace(assignment, keeper=keeper)), timeout=500)
        ray.kill(process)
        assert found == [str(path) for path in reversed(list_checkpoints(assignment.directory))]
        assert [verify_checkpoint(Path(str(path))).sequence for path in found] == [1, 2]
        link = RayKeeperLink(keeper)
        with pytest.raises(FileNotFoundError):
            link.call(Keeper.begin, "not a trial").get()
    with pytest.raises(KeeperLostError, match="the Keeper, which writes the trial's files"):
        link.call(Keeper.stop_requested).get()


SOURCES: Final = {"files", "file", "experiments", "path", "algo", "env", "stop", "config", "seeds", "lr"}
"""What is trained: files, a dict, a run, an agent on an env; and values of keys, which Python writes as overrides."""
ONLY_OF_COMMANDS: Final = {"dry_run", "wait", "working_dir", "board", "keys", "queue", "insecure", "track"}
"""What makes the fields that are derived, beside ``address``, and ``--dry-run``."""
OF_SEARCH: Final = {
    "searched",
    "searcher",
    "scheduler",
    "num_samples",
    "num_seeds",
    "max_concurrent",
    "time_budget_s",
    "metric",
    "mode",
}
"""Values of the keys of ``search``, which Python's users write as overrides."""


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters but the experiments, with their defaults: no value, an empty list of them, are one."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default or None for each in parameters if each.name not in SOURCES}


@pytest.mark.parametrize("kind", ["run", "sweep", "resume"])
def test_command_function_and_request_have_the_same_options_and_defaults(kind: str) -> None:
    command, function = options_of(getattr(training, kind)), options_of(getattr(rlexp, kind))
    beside = ONLY_OF_COMMANDS | (OF_SEARCH if kind == "sweep" else set())
    assert set(command) - beside - {"as_json"} == set(function)
    for given in (command, function):
        for name in given.keys() & OPTIONS.keys():
            assert type(OPTIONS[name])(given[name]) == OPTIONS[name] if given[name] else not OPTIONS[name], name
    assert not (set(function) - OPTIONS.keys())


def test_every_option_is_one_of_a_command_and_of_a_function() -> None:
    for module in (training, rlexp):
        offered = set().union(*(options_of(getattr(module, kind)) for kind in ("run", "sweep", "resume")))
        assert OPTIONS.keys() - offered - SOURCES - {"command", "draws"} <= ({"as_json"} if module is rlexp else set())


def test_request_goes_through_json() -> None:
    options = {
        "out": "elsewhere",
        "overrides": ["a=1"],
        "imports": None,
        "seed": 3,
        "fit": True,
        "command": ["rlexp"],
        "experiments": "no option",
        "board": "redis://HOST",
    }
    request = TrainingRequest.of("sweep", options, source=Source((Path("a.yaml"),), {"a": [1]}, ("folder",)))
    assert (request.out, request.overrides, request.imports) == (Path("elsewhere"), ("a=1",), ())
    assert request.board is None
    assert TrainingRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    preset = TrainingRequest("run", Source(agent="PPO", env="CartPole-v1"))
    assert TrainingRequest.from_json(json.loads(json.dumps(preset.to_json()))) == preset
