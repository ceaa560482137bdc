"""Names that a program registered in RLlib, and the classes that ``--map`` gives for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.config.command_line import LoadOptions, parse_names
from rlexp.config.load import Plan, load_plan, resolved_yaml
from rlexp.errors import UsageError
from tests.lab.experiment_files import config_of, messages, problems

THEIRS = """\
flatland:
  run: PPO
  env: {env}
  stop: {{timesteps_total: 100}}
  config:
    env_config: {{observation: tree}}
    model: {{custom_model: global_obs_model, custom_options: {{width: 8}}}}
"""
NAMES = ("flatland_sparse=my_envs:Flatland", "global_obs_model=my_nets:Net", "other=my_envs:Other")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan_of(names: tuple[str, ...], env: str = "flatland_sparse") -> Plan:
    Path("f.yaml").write_text(THEIRS.format(env=env))
    return load_plan(["f.yaml"], seed=0, options=LoadOptions(names=parse_names(names)))


def test_a_class_is_used_for_a_name_and_a_notice_says_so() -> None:
    plan = plan_of(NAMES)
    config = config_of(plan)
    assert plan.trials[0].experiment.env == "my_envs:Flatland"
    assert (config.model.custom_model.name, config.model.custom_model.kwargs) == ("my_nets:Net", {"width": 8})
    assert "env: flatland_sparse is my_envs:Flatland (--map)" in messages(plan)
    assert "config.model.custom_model: global_obs_model is my_nets:Net (--map)" in messages(plan)


def test_the_resolved_file_needs_no_names() -> None:
    """So what is resumed, played or sent names classes, which the rules for other people's code know."""
    plan = plan_of(NAMES)
    Path("resolved.yaml").write_text(resolved_yaml(plan))
    assert load_plan(["resolved.yaml"], seed=0).trials[0].experiment == plan.trials[0].experiment


def test_unknown_names_name_the_option_as_the_remedy() -> None:
    (env_place, env, env_hint), (model_place, model, model_hint) = problems(plan_of, ())
    assert (env_place, env) == ("f.yaml:3:8", "env flatland_sparse is not a Gymnasium environment")
    assert "--map flatland_sparse=package.module:Class" in (env_hint or "")
    assert model_place == "f.yaml:7:13"
    assert "global_obs_model is a name that a program registered in RLlib" in model
    assert "--map global_obs_model=package.module:Class" in (model_hint or "")


def test_each_value_of_a_grid_is_mapped() -> None:
    plan = plan_of(NAMES, "{grid_search: [flatland_sparse, other]}")
    assert [trial.experiment.env for trial in plan.trials] == ["my_envs:Flatland", "my_envs:Other"]


@pytest.mark.parametrize("text", ["flatland", "flatland=", "=my_envs:Flatland", "a=m:A"])
def test_a_mapping_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--map"):
        parse_names(["a=m:B", text])
