"""``track``: its short forms, what the command line makes of it, and what is refused.

Wrappers that can be trained with, but lead to what few mean, are a notice at the key that lists them.

Convolutions that do not fit are known of before an image is seen, as the network itself would say it.

A class of the user's own as keys name it: read from both forms, written in the shorter one, else refused.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlexp.cluster.room import machine
from rlexp.cluster.room.machine import check_requirements
from rlexp.commands.options import SchedulerName, SearcherName, Tracking
from rlexp.commands.requests import track_flags
from rlexp.config.keys.experiment import TRACKERS
from rlexp.config.keys.fields import ConvFilter, KeyGroup
from rlexp.config.keys.key_table import expectation
from rlexp.config.keys.model import misfit, sides_of_layers
from rlexp.config.keys.search import SCHEDULERS, SearchConfig
from rlexp.config.keys.user_code import UserClass, UserClasses
from rlexp.config.load import AS_IT_STANDS, LoadOptions, load_plan, resolved_yaml
from rlexp.config.yaml.nodes import shown
from rlexp.errors import UsageError
from rlexp.models.network_config import TorsoConfig
from rlexp.models.torsos import make_torso
from tests.lab.experiment_files import Load, messages, problems

NORMALIZED_OBSERVATIONS = "gymnasium.wrappers:NormalizeObservation"


@pytest.mark.parametrize("run", ["PPO", "DQN", "APEX"])
@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        (NORMALIZED_OBSERVATIONS, "observation_filter: MeanStdFilter shares and saves them"),
        ("gymnasium.wrappers.stateful_observation:NormalizeObservation", "observation_filter: MeanStdFilter"),
        ("{gymnasium.wrappers:NormalizeReward: {gamma: 0.9}}", "clip_rewards limits only"),
    ],
)
def test_statistics_that_no_checkpoint_has_are_a_notice(load_ppo: Load, run: str, wrapper: str, instead: str) -> None:
    (notice,) = load_ppo(f"num_workers: 0, env_wrappers: [{wrapper}]", run=run).notices
    assert notice.where == "f.yaml:5:28"
    assert notice.message.startswith("config.env_wrappers names Normalize")
    assert instead in notice.message


def test_each_wrapper_is_noted_once(load_ppo: Load) -> None:
    twice = f"[{NORMALIZED_OBSERVATIONS}, {NORMALIZED_OBSERVATIONS}]"
    assert len(messages(load_ppo(f"num_workers: 0, env_wrappers: {twice}"))) == 1


def test_other_wrappers_are_not_noted(load_ppo: Load) -> None:
    wrappers = "[gymnasium.wrappers:FlattenObservation, mine:NormalizeObservation]"
    assert messages(load_ppo(f"num_workers: 0, env_wrappers: {wrappers}")) == []


def test_notices_of_an_agents_own_keys_are_beside_those_of_wrappers(load_ppo: Load) -> None:
    keys = f"num_workers: 0, env_wrappers: [{NORMALIZED_OBSERVATIONS}], prioritized_replay_beta: 0.9"
    assert ["env_wrappers" in message for message in messages(load_ppo(keys, run="DQN"))] == [True, False]


kernels = st.tuples(st.integers(1, 9), st.integers(1, 9))
layers = st.one_of(
    st.tuples(st.just(2), kernels, st.integers(1, 4)),
    st.tuples(st.just(2), kernels, st.integers(1, 4), st.sampled_from(["same", "valid"])),
)


def torso_config(filters: tuple[ConvFilter, ...]) -> TorsoConfig:
    return TorsoConfig((), "relu", filters, "relu", (), "relu", zero_mean=False)


@settings(max_examples=50)
@given(st.lists(layers, min_size=1, max_size=3), st.integers(1, 30), st.integers(1, 30))
def test_misfit_agrees_with_network(filters: list[ConvFilter], height: int, width: int) -> None:
    if misfit(height, width, filters) is None:
        torso = make_torso((height, width, 1), torso_config(tuple(filters)))
        assert torso(torch.zeros((1, height, width, 1))).shape == (1, torso.num_features)
    else:
        with pytest.raises(UsageError, match=f"do not fit images of {height}x{width}"):
            make_torso((height, width, 1), torso_config(tuple(filters)))


def test_sides_of_layers_by_hand() -> None:
    filters = ((16, (8, 8), 4), (32, (4, 4), 2), (256, (11, 11), 1))
    assert list(sides_of_layers(84, 84, filters)) == [(84, 84), (21, 21), (11, 11), (1, 1)]
    assert list(sides_of_layers(84, 42, filters))[:3] == [(84, 42), (21, 11), (11, 6)]
    unpadded: tuple[ConvFilter, ...] = ((32, (8, 8), 4, "valid"), (64, (4, 4), 2, "valid"), (64, (3, 3), 1, "same"))
    assert list(sides_of_layers(84, 42, unpadded)) == [(84, 42), (20, 9), (9, 3), (9, 3)]
    assert misfit(84, 84, filters) is None
    assert misfit(84, 42, filters) is not None


FILTERS = "model: {dim: 42, conv_filters: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]]}"


@pytest.mark.key("model.conv_filters")
@pytest.mark.parametrize("preference", ["deepmind", "rllib"])
def test_load_refuses_filters_that_misfit_atari_frames(load: Load, preference: str) -> None:
    keys = f"preprocessor_pref: {preference}, {FILTERS}"
    ((where, message, _),) = problems(load, keys, env="PongNoFrameskip-v4")
    assert where == f"f.yaml:5:{len(preference) + 50}"
    assert "kernel 3 is 11x11, but sees 6x6 pixels" in message


@pytest.mark.parametrize(
    ("env", "preference"), [("PongNoFrameskip-v4", "null"), ("tests.lab.envs:ImageEnv", "deepmind")]
)
def test_load_accepts_filters_for_images_of_unknown_size(load: Load, env: str, preference: str) -> None:
    assert load(f"preprocessor_pref: {preference}, {FILTERS}", env=env).trials


@pytest.mark.parametrize("value", ["low", "[1]", "true", ".inf"])
def test_a_wrong_target_entropy_is_answered_at_its_place(load: Load, value: str) -> None:
    ((where, message, _),) = problems(load, f"target_entropy: {value}", run="SAC", env="Pendulum-v1")
    assert where.startswith("f.yaml:5:")
    assert message.startswith("config.target_entropy must be a number, auto or null, got ")


def file_with(folder: Path, track: Any) -> Path:
    file = folder / "one.yaml"
    track_line = "" if track is ... else f"  track: {track}\n"
    file.write_text(f"one:\n  run: DQN\n  env: CartPole-v1\n  stop:\n    training_iteration: 1\n{track_line}")
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
    ((where, found, _),) = problems(load_plan, [file_with(tmp_path, written)])
    assert re.search(message, f"{where} {found}")


def test_options_name_the_values_that_keys_take() -> None:
    searchers = get_args(get_args(SearchConfig.model_fields["searcher"].annotation)[0])
    assert (*SearcherName,) == searchers
    assert (*SchedulerName,) == (*SCHEDULERS,)
    assert (*Tracking,) == (*TRACKERS, "none")


@pytest.mark.parametrize("options", [LoadOptions(), LoadOptions(flags=track_flags([Tracking("mlflow")]))])
def test_a_missing_library_is_found_where_track_names_it(
    options: LoadOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_installed", lambda name: False)
    plan = load_plan([file_with(tmp_path, "wandb")], options=options)
    where, name = ("--track mlflow", "mlflow") if options.flags else (f"{tmp_path / 'one.yaml'}:6:10", "wandb")
    expected = (where, f"track: {name} is not installed", f"pip install 'rlexp[{name}]'")
    assert problems(check_requirements, plan) == [expected]


def test_a_folder_that_a_tracker_has_left_is_not_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("surely_no_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not machine.is_installed("surely_no_library")
    assert machine.is_installed("yaml")


class Keys(KeyGroup):
    """Keys of this type, as agents have them."""

    one: UserClass | None = None
    """A class."""
    several: UserClasses = ()
    """Classes."""


@pytest.mark.parametrize(
    ("given", "name", "kwargs", "written"),
    [
        ("mine:Maze", "mine:Maze", {}, "mine:Maze"),
        ({"a.b:C": {"size": [3, 4]}}, "a.b:C", {"size": [3, 4]}, {"a.b:C": {"size": [3, 4]}}),
        ({"a.b:C": {}}, "a.b:C", {}, "a.b:C"),
        ({"a.b:C": None}, "a.b:C", {}, "a.b:C"),
    ],
)
def test_user_class_is_read_and_written(given: Any, name: str, kwargs: dict[str, Any], written: Any) -> None:
    keys = Keys.model_validate({"one": given, "several": [given, "mine:Other"]})
    assert keys.one == UserClass(name, kwargs)
    assert keys.several == (UserClass(name, kwargs), UserClass("mine:Other"))
    dumped = keys.model_dump(mode="json")
    assert dumped == {"one": written, "several": [written, "mine:Other"]}
    assert Keys.model_validate(dumped) == keys


@pytest.mark.parametrize(
    "given",
    [
        *("Maze", "mine:", ":Maze", "mine:Maze-v0", "my mod:Maze", "os:system('x')", 3, True, [], {}),
        *({"mine:Maze": 3}, {"mine:Maze": ["x"]}, {"a:B": {}, "c:D": {}}, {"a:B": {"no name": 1}}, {"a:B": {1: 2}}),
    ],
)
def test_user_class_refuses_other_values(given: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        Keys.model_validate({"one": given})
    (error,) = refused.value.errors()
    assert error["loc"] == ("one",)
    assert error["msg"] == f"must be {UserClass.EXPECTED}"


def test_user_class_refuses_arguments_that_json_does_not_have() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        Keys.model_validate({"one": {"a:B": {"x": [math.nan]}}})


def test_user_class_is_described_in_words_and_in_the_schema() -> None:
    words = [expectation(field.annotation, field.metadata) for field in Keys.model_fields.values()]
    assert words == [f"{UserClass.EXPECTED} or null", f"a list of {UserClass.EXPECTED}"]
    text, mapping, null = Keys.model_json_schema()["properties"]["one"]["anyOf"]
    assert (text["type"], mapping["type"], null) == ("string", "object", {"type": "null"})
    assert text["pattern"] in mapping["patternProperties"]


def test_user_class_is_a_part_of_the_experiment() -> None:
    part = UserClass("a.b:C", {"x": 1}).as_part("config.key")
    assert (part.key, part.name, part.module, part.kwargs) == ("config.key", "a.b:C", "a.b", {"x": 1})


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("my_prep", "rlexp has no registry of names: write my_module:my_prep"),
        ("my.module.Prep", "write my.module:Prep"),
        ("my prep", None),
    ],
)
def test_registered_name_of_rllib_is_told_how_to_name_the_class(load: Load, given: str, hint: str | None) -> None:
    ((_, *found),) = problems(load, f"model: {{custom_preprocessor: {given}}}")
    assert found == [f"config.model.custom_preprocessor must be {UserClass.EXPECTED}, got {shown(given)}", hint]
