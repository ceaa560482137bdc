"""The JSON Schema of experiment files says what `rlexp check` says, as far as a schema can."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rlexp.config.keys.agents import AGENTS
from rlexp.config.load import converted_file
from rlexp.config.reference import json_schema
from rlexp.config.reference.json_schema import experiment_schema, with_shared_definitions
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Place

EXPERIMENTS = sorted(Path(__file__).parents[3].glob("experiments/**/*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = experiment_schema()
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
        ("DQN", "{train_batch_size: {eval: 4 * spec.config.num_workers}}"),
        ("DQN", "{exploration_config: {type: SoftQ}, rollout_fragment_length: 4, framework: tf, gpu: true}"),
        ("DQN", "{clip_rewards: [0, 1], lr_schedule: [[0, 1], [5, 2]], grad_norm_clipping: null}"),
        ("PPO", "{lambda: 0.9, sgd_minibatch_size: 32, model: {vf_share_layers: true}}"),
        ("APEX", "null"),
    ],
)
def test_schema_accepts(validator: Any, run: str, config: str) -> None:
    validator.validate(
        experiment(config, run, "stop: {episode_reward_mean: 3, sampler_results/episode_reward_mean: 3},")
    )


@pytest.mark.parametrize(
    ("run", "config", "beside"),
    [
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
        ("DQN", "{}", "stop: {reward: 3},"),
        ("DQN", "{}", "stop: {timesteps_total: -1000},"),
        ("DQN", "{prioritized_replay_alpha: 1.5}", ""),
        ("DQN", "{}", "chekpoint_freq: 3,"),
    ],
)
def test_schema_refuses(validator: Any, run: str, config: str, beside: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(experiment(config, run, beside))


def test_schema_describes_keys() -> None:
    config = expanded(experiment_schema(), "APEX")["properties"]["config"]["anyOf"][0]["properties"]
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


@pytest.mark.parametrize("run", AGENTS)
def test_sharing_definitions_changes_no_agent(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = expanded(experiment_schema(), run)
    monkeypatch.setattr(json_schema, "with_shared_definitions", dict)
    assert shared == expanded(experiment_schema(), run)


def test_schema_is_small_enough_for_editors() -> None:
    printed = json.dumps(experiment_schema(), indent=1)
    assert len(printed) < 300_000
    assert printed.count('"Learning rate of Adam') <= 2


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
