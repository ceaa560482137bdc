"""``track``: its short forms, what the command line makes of it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rlexp.cluster.room import check_requirements, machine
from rlexp.commands.options import Tracking, track_flags
from rlexp.config.keys.tracking import TRACKERS
from rlexp.config.load import AS_IT_STANDS, LoadOptions, load_plan, resolved_yaml
from rlexp.config.reference.json_schema import experiment_schema
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError, UsageError


def file_with(folder: Path, track: Any) -> Path:
    file = folder / "one.yaml"
    file.write_text(to_yaml({"one": {"run": "DQN", "env": "CartPole-v1", "stop": {"training_iteration": 1}}}))
    if track is not ...:
        file.write_text(file.read_text() + f"  track: {track}\n")
    return file


def to_of(file: Path, *overrides: str, options: LoadOptions = AS_IT_STANDS) -> tuple[str, ...]:
    return load_plan([file], overrides, options=options).trials[0].experiment.track.to


@pytest.mark.parametrize(
    ("written", "trackers"),
    [
        (..., ()),
        ("", ()),
        ("[]", ()),
        ("wandb", ("wandb",)),
        ("[mlflow, wandb]", ("mlflow", "wandb")),
        ("{wandb: {project: a}}", ("wandb",)),
        ("{wandb: , mlflow: {experiment: b}}", ("wandb", "mlflow")),
        ("{to: mlflow, wandb: {project: a}}", ("mlflow",)),
        ("{to: [], wandb: {project: a}}", ()),
    ],
)
def test_short_forms_of_track_name_its_trackers(written: Any, trackers: tuple[str, ...], tmp_path: Path) -> None:
    file = file_with(tmp_path, written)
    assert to_of(file) == trackers
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(resolved_yaml(load_plan([file])))
    assert to_of(resolved) == trackers, "a resumed run records where the first command did"


def test_overrides_reach_into_a_short_form_of_track(tmp_path: Path) -> None:
    track = load_plan([file_with(tmp_path, "wandb")], ["track.wandb.project=a"]).trials[0].experiment.track
    assert (track.to, track.wandb.project) == (("wandb",), "a")
    assert to_of(file_with(tmp_path, "wandb"), "track=mlflow") == ("mlflow",)


@pytest.mark.parametrize(
    ("given", "trackers"), [((), ("wandb",)), (("mlflow",), ("mlflow",)), (("none",), ()), (TRACKERS, TRACKERS)]
)
def test_track_of_the_command_line_wins_over_the_file(
    given: tuple[str, ...], trackers: tuple[str, ...], tmp_path: Path
) -> None:
    options = LoadOptions(flags=track_flags([Tracking(name) for name in given]))
    assert to_of(file_with(tmp_path, "{wandb: {project: a}}"), options=options) == trackers


def test_track_none_beside_a_tracker_is_refused() -> None:
    with pytest.raises(UsageError, match="--track none cannot be combined"):
        track_flags([Tracking("none"), Tracking("wandb")])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("tensorboard", r"one\.yaml:6:10 .*track\.to\[0\] must be one of wandb, mlflow"),
        ("{wandb: {projekt: a}}", r"unknown key track\.wandb\.projekt"),
        ("{wandb: {project: a/b}}", r"track\.wandb\.project must have at most 128 characters"),
        ("{wandb: {mode: disabled}}", r"track\.wandb\.mode must be one of online, offline or null"),
        ("{mlflow: {artifacts: [models]}}", r"must be one of checkpoints, videos"),
        ("{mlflow: {tracking_uri: 'http://a'}}", r"unknown key track\.mlflow\.tracking_uri"),
    ],
)
def test_wrong_values_of_track_are_refused_at_their_place(written: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_plan([file_with(tmp_path, written)])
    (problem,) = error.value.problems
    assert re.search(message, f"{problem.where} {problem.message}")


@pytest.mark.parametrize("options", [LoadOptions(), LoadOptions(flags=track_flags([Tracking("mlflow")]))])
def test_a_missing_library_is_found_where_track_names_it(
    options: LoadOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_installed", lambda name: False)
    plan = load_plan([file_with(tmp_path, "wandb")], options=options)
    with pytest.raises(ConfigError) as error:
        check_requirements(plan)
    (problem,) = error.value.problems
    where, name = ("--track mlflow", "mlflow") if options.flags else (f"{tmp_path / 'one.yaml'}:6:10", "wandb")
    assert (problem.where, problem.message) == (where, f"track: {name} is not installed")
    assert problem.hint == f"pip install 'rlexp[{name}]'"


def test_a_folder_that_a_tracker_has_left_is_not_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("surely_no_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not machine.is_installed("surely_no_library")
    assert machine.is_installed("yaml")


@pytest.mark.parametrize("track", ["wandb", ["wandb", "mlflow"], {"wandb": {"project": "a"}}, {"to": ["mlflow"]}])
def test_editors_accept_every_form_of_track(track: Any) -> None:
    file = {"one": {"run": "DQN", "env": "CartPole-v1", "track": track}}
    jsonschema.validate(file, experiment_schema())


def test_editors_refuse_unknown_trackers() -> None:
    file = {"one": {"run": "DQN", "env": "CartPole-v1", "track": "tensorboard"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(file, experiment_schema())
