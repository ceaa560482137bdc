"""What `rlexp explain` says of keys, and that each has a test of its effect.

The JSON Schema of experiment files says what `rlexp check` says, as far as a schema can.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import Field

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.fields import KeyGroup, defaults_of
from rlexp.config.keys.key_table import key_table
from rlexp.config.load import converted_file
from rlexp.config.reference import explain, json_schema
from rlexp.config.reference.explain import find_keys, find_old_key, key_references, nearest_name, search_meanings
from rlexp.config.reference.json_schema import experiment_schema, with_shared_definitions
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Place
from rlexp.terminal.explanations import print_explanation

EXPERIMENTS = sorted(Path(__file__).parents[3].glob("experiments/**/*.yaml"))


@pytest.fixture(scope="module")
def schema() -> Any:
    return experiment_schema()


@pytest.fixture(scope="module")
def validator(schema: Any) -> Any:
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def data(text: str) -> Any:
    read = reader.parse(text, lambda line, column: Place("f.yaml", line, column))
    assert read.root is not None
    assert not read.problems
    return read.root.plain()


def experiment(config: str, run: str = "APEX", beside: str = "") -> Any:
    return data(f"a: {{run: {run}, env: CartPole-v1, {beside} config: {config}}}")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_schema_accepts_experiments_folder(validator: Any, path: Path) -> None:
    validator.validate(data(path.read_text()))
    validator.validate(data(converted_file(path)))


@pytest.mark.parametrize(
    ("run", "config"),
    [
        ("apex", "{num_replay_buffer_shards: 2, optimizer: {debug: true, buffer_size: 3}}"),
        ("DQN", "{lr: {grid_search: [1e-3, 1e-4]}, model: {fcnet_hiddens: [{grid_search: [1, 2]}, 3]}}"),
        ("DQN", "{train_batch_size: {eval: 'tune.choice([32, 64])'}}"),
        ("DQN", "{exploration_config: {type: SoftQ}, rollout_fragment_length: 4, framework: tf, gpu: true}"),
        ("DQN", "{clip_rewards: [0, 1], lr_schedule: [[0, 1], [5, 2]], grad_norm_clipping: null}"),
        ("PPO", "{lambda: 0.9, sgd_minibatch_size: 32, model: {vf_share_layers: true}}"),
        ("APEX", "null"),
        ("DQN", "{callbacks: 'metrics:Mine'}"),
        ("DQN", "{callbacks: {'metrics:Mine': {goal: 1}}}"),
        ("DQN", "{callbacks: ['metrics:Mine', {'metrics:Other': {goal: 1}}]}"),
        ("DQN", "{callbacks: null}"),
    ],
)
def test_schema_accepts(validator: Any, run: str, config: str) -> None:
    validator.validate(
        experiment(config, run, "stop: {episode_reward_mean: 3, sampler_results/episode_reward_mean: 3},")
    )


@pytest.mark.parametrize("track", ["wandb", "[wandb, mlflow]", "{wandb: {project: a}}", "{to: [mlflow]}"])
def test_schema_accepts_every_form_of_track(validator: Any, track: str) -> None:
    validator.validate(experiment("{}", beside=f"track: {track},"))


@pytest.mark.parametrize(
    ("run", "config", "beside"),
    [
        ("DQN", "{}", "track: tensorboard,"),
        ("APEX", "{num_wokers: 2}", ""),
        ("APEX", "{optimizer: {num_shards: 2}}", ""),
        ("APEX", "{model: {fcnet_hidden: [2]}}", ""),
        ("DQN", "{num_replay_buffer_shards: 2}", ""),
        ("DQN", "{lr: fast}", ""),
        ("DQN", "{lr: 0}", ""),
        ("DQN", "{lr: {grid_search: []}}", ""),
        ("DQN", "{gamma: 1.5}", ""),
        ("DQN", "{hiddens: null}", ""),
        ("DQN", "{hiddens: [0]}", ""),
        ("DQN", "{custom_resources_per_worker: {tpu: many}}", ""),
        ("DQN", "{batch_mode: whole}", ""),
        ("DQN", "{callbacks: Mine}", ""),
        ("DQN", "{}", "stop: {reward: 3},"),
        ("DQN", "{}", "stop: {timesteps_total: -1000},"),
        ("DQN", "{prioritized_replay_alpha: 1.5}", ""),
        ("DQN", "{}", "chekpoint_freq: 3,"),
    ],
)
def test_schema_refuses(validator: Any, run: str, config: str, beside: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(experiment(config, run, beside))


def test_schema_describes_keys(schema: Any) -> None:
    config = expanded(schema, "APEX")["properties"]["config"]["anyOf"][0]["properties"]
    assert config["n_step"]["description"].startswith("Number of rewards added up in one transition")
    assert config["num_env_runners"]["description"] == "Now config.num_workers."


def expanded(schema: Any, name: str) -> Any:
    """Return a definition with all that it refers to in place of the references."""

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            assert list(node) == ["$ref"], "editors ignore what is beside a reference"
            return inlined(schema["definitions"][node["$ref"].removeprefix("#/definitions/")])
        return {word: inlined(value) for word, value in node.items()}

    return inlined(schema["definitions"][name])


def test_sharing_definitions_changes_no_agent(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "with_shared_definitions", dict)
    unshared = experiment_schema()
    for run in AGENTS:
        assert expanded(schema, run) == expanded(unshared, run), run


def test_schema_is_small_enough_for_editors(schema: Any) -> None:
    printed = json.dumps(schema, indent=1)
    assert len(printed) < 100_000 * len(AGENTS)
    assert printed.count('"Learning rate of Adam') <= 3


def test_definitions_share_groups_and_keys_below_different_groups() -> None:
    def agent(lr: str, model: str) -> Any:
        keys = {"lr": {"description": lr * 100}, "gamma": {"description": "g" * 100}, "short": {"type": "number"}}
        group = {"type": "object", "properties": keys}
        config = {"description": "c", "anyOf": [group, {"$ref": "#/definitions/searched"}]}
        return {"properties": {"config": config, "model": {"properties": {"a": {"description": model * 100}}}}}

    definitions = with_shared_definitions({"X": agent("x", "m"), "Y": agent("y", "m"), "Z": agent("z", "n")})
    assert set(definitions) == {"X", "Y", "Z", "config.gamma", "model"}
    keys = definitions["Y"]["properties"]["config"]["anyOf"][0]["properties"]
    assert keys == {
        "lr": {"description": "y" * 100},
        "gamma": {"$ref": "#/definitions/config.gamma"},
        "short": {"type": "number"},
    }
    assert definitions["X"]["properties"]["model"] == {"$ref": "#/definitions/model"}
    assert definitions["Z"]["properties"]["model"]["properties"]["a"] == {"description": "n" * 100}


ROOT = Path(__file__).parents[3]
BEHAVIOUR = ROOT / "tests" / "behaviour"


class OtherKeys(KeyGroup):
    """Keys of an agent that gives one of them another meaning."""

    n_step: int = 1
    """Other steps."""

    gamma: float = Field(1.0, description="Another discount.")


def behaviour_tests(directory: Path) -> dict[str, str]:
    """Return the first test of each key, read off the marks in the files below a folder without importing them."""
    tests: dict[str, str] = {}
    for path in sorted(directory.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for key in marked_keys(node):
                    tests.setdefault(key, f"{path.stem}::{node.name}")
    return tests


def marked_keys(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.key":
            yield from (
                word.value for word in mark.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            )


@pytest.mark.parametrize(
    ("text", "first"),
    [
        *(("discount", "config.gamma"), ("learning_rate", "config.lr"), ("batch-size", "config.train_batch_size")),
        *(("target network", "config.target_network_update_freq"), ("early stopping", "median"), ("zzz", None)),
    ],
)
def test_meanings_are_searched(text: str, first: str | None) -> None:
    found = [each.name for each in search_meanings(text)]
    assert next(iter(found), None) == first
    assert len(set(found)) == len(found)


def test_explain_lists_what_has_the_word_in_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation("learning_rate")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nothing is called learning_rate; these are about it:"
    assert lines[1].split()[:3] == ["config.lr", "Learning", "rate"]
    assert len(lines) <= 11
    assert max(map(len, lines)) <= 80


def test_tests_of_keys_are_found_by_their_marks(tmp_path: Path) -> None:
    (tmp_path / "test_keys_a.py").write_text(
        'import pytest\n\n@pytest.mark.key("lr", "optimizer.debug")\ndef test_rates() -> None: ...\n'
        '\n@pytest.mark.key("stop")\nclass TestStop: ...\n\ndef test_other() -> None: ...\n'
    )
    assert behaviour_tests(tmp_path) == {
        "lr": "test_keys_a::test_rates",
        "optimizer.debug": "test_keys_a::test_rates",
        "stop": "test_keys_a::TestStop",
    }


def test_every_key_has_a_behaviour_test() -> None:
    tests = behaviour_tests(BEHAVIOUR)
    keys = [key for key in key_references() if not key.is_group]
    names = {key.dotted.removeprefix("config.") for key in keys}
    unknown = {name for name in tests if name not in names and f"optimizer.{name}" not in names}
    assert not unknown, f"tests of keys that there are not: {sorted(unknown)}"
    missing = sorted(name for name in names if name not in tests and name.removeprefix("optimizer.") not in tests)
    assert not missing, f"keys without a test in tests/behaviour: {missing}"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lr", ["config.lr"]),
        ("config.lr", ["config.lr"]),
        ("debug", ["config.optimizer.debug"]),
        ("model.dim", ["config.model.dim"]),
        ("num_env_runners", ["config.num_workers"]),
        ("gpu", ["config.num_gpus"]),
        ("num_learner_workers", ["config.num_learners"]),
        ("exploration_config.final_epsilon", ["config.exploration_final_eps"]),
        ("nothing", []),
    ],
)
def test_find_keys_by_any_name(name: str, found: list[str]) -> None:
    assert [key.dotted for key in find_keys(name)] == found


def test_the_usual_name_of_the_number_of_seeds_is_explained_as_such() -> None:
    seeds, of_a_sweep = find_keys("num_seeds")
    assert (seeds.path, seeds.spellings) == (("num_seeds",), ("num_samples", "repeat"))
    assert of_a_sweep.path == ("search", "num_seeds")
    assert find_keys("num_samples")[0].path == ("num_samples",)


def test_find_old_key() -> None:
    gone = find_old_key("model.use_attention")
    assert gone is not None
    assert (gone.dotted, gone.says) == ("config.model.use_attention", "is not supported by rlexp: attention models")
    assert find_old_key("nothing") is None
    group, below = (find_old_key(name) for name in ("exploration_config", "evaluation_config.exploration_config"))
    assert group is not None
    assert below is not None
    assert group.dotted == "config.exploration_config"
    assert below.dotted == "config.evaluation_config.exploration_config"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("num_wokers", "num_workers"),
        ("enviroment", "env"),
        ("leraning_rate", "lr"),
        ("mean_episode_reward", "episode_reward_mean"),
        ("asha.grace", "asha.grace_period"),
        ("exploration_config.typ", "exploration_config.type"),
        ("config.lrr", "config.lr"),
        ("resuorcez_of_it", None),
    ],
)
def test_nearest_name_of_a_misspelt_word(name: str, nearest: str | None) -> None:
    assert nearest_name(name) == nearest


@pytest.mark.parametrize("run", AGENTS)
def test_defaults_that_are_not_validated_are_those_that_are(run: str) -> None:
    group = AGENTS[run].model_fields["config"].annotation
    assert isinstance(group, type)
    assert defaults_of(group) == group()


def test_meaning_may_be_the_description_of_a_field() -> None:
    key = key_table("DQN")["config", "gamma"]
    assert replace(key, group=OtherKeys).meaning == "Another discount."


def test_meaning_is_read_of_a_class_in_a_function() -> None:
    class Nested(KeyGroup):
        gamma: float = 1.0
        """The margin
of this text is none."""

    key = key_table("DQN")["config", "gamma"]
    assert replace(key, group=Nested).meaning == "The margin\nof this text is none."


def test_keys_of_a_class_without_source_have_no_meaning() -> None:
    source = "class Made(KeyGroup):\n    gamma: float = 1.0\n    'No file has this text.'\n"
    names = {"KeyGroup": KeyGroup, "__name__": "nowhere"}
    exec(source, names)  # as a notebook or a debugger makes classes
    key = key_table("DQN")["config", "gamma"]
    assert replace(key, group=names["Made"]).meaning == ""  # type: ignore[arg-type]


def test_key_reference_has_defaults_by_agent() -> None:
    (key,) = find_keys("n_step")
    assert key.defaults == {
        "DQN": 1,
        "APEX": 3,
        "DDPG": 1,
        "TD3": 1,
        "APEX_DDPG": 3,
        "SAC": 1,
        "SIMPLEQ": 1,
        "R2D2": 1,
        "APEX_R2D2": 5,
    }


def test_key_reference_has_values_and_meaning_by_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {run: dict(key_table(run)) for run in AGENTS}
    path = ("config", "n_step")
    tables["APEX"][path] = replace(tables["APEX"][path], expects="a number", group=OtherKeys)
    monkeypatch.setattr(explain, "key_table", tables.__getitem__)
    explain.key_references.cache_clear()
    try:
        (key,) = find_keys("n_step")
    finally:
        explain.key_references.cache_clear()
    dqn = key_table("DQN")[path]
    assert (
        key.expects == "a whole number >= 1 (DQN, SIMPLEQ, DDPG, TD3, APEX_DDPG, SAC, R2D2, APEX_R2D2), a number (APEX)"
    )
    assert key.meaning == f"DQN, SIMPLEQ, DDPG, TD3, APEX_DDPG, SAC, R2D2, APEX_R2D2: {dqn.meaning} APEX: Other steps."
