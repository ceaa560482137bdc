"""A class of the user's own as keys name it: read from both forms, written in the shorter one, else refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlexp.config.keys.fields import KeyGroup
from rlexp.config.keys.key_table import expectation
from rlexp.config.keys.user_code import UserClass, UserClasses
from rlexp.config.load import load_plan
from rlexp.config.yaml.nodes import shown
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError


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
def test_registered_name_of_rllib_is_told_how_to_name_the_class(given: str, hint: str | None, tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    model = {"custom_preprocessor": given}
    file.write_text(to_yaml({"e": {"run": "DQN", "env": "CartPole-v1", "config": {"model": model}}}), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_plan([file])
    (problem,) = refused.value.problems
    assert problem.message == f"config.model.custom_preprocessor must be {UserClass.EXPECTED}, got {shown(given)}"
    assert problem.hint == hint
