"""ONNX files: what onnxruntime computes with them, what they say of themselves, and when none is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from typer.testing import CliRunner

from rlexp import __version__
from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.agents.export.export import NUM_OBSERVATIONS, drawn_observations
from rlexp.agents.export.onnx import ExportError, Verifier, onnx_model
from rlexp.agents.export.policy_graph import GreedyPolicy
from rlexp.agents.trained_policy import TrainedPolicy
from rlexp.cli import app
from tests.lab.envs import PIXEL_ENV
from tests.unit.agents.export.checkpoints import MATCHING_ENV, saved_checkpoint

for library in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(library)

DISTRIBUTIONAL: Mapping[str, Any] = {
    "num_atoms": 5,
    "v_min": -20,
    "v_max": 0,
    "noisy": True,
    "discretize_actions": 3,
    "observation_filter": "MeanStdFilter",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_checkpoint(tmp_path_factory.mktemp("dqn"), "DQN", "Pendulum-v1", DISTRIBUTIONAL)


@pytest.fixture(scope="module")
def policy(checkpoint: Path) -> GreedyPolicy:
    return GreedyPolicy.of(LoadedCheckpoint.load(checkpoint))


@pytest.fixture(scope="module")
def model(policy: GreedyPolicy) -> bytes:
    return onnx_model(policy.graph(), policy.example(2), policy.output_names, {})


def observations(policy: GreedyPolicy, number: int = 300) -> dict[str, Any]:
    return {"drawn": drawn_observations(policy.restored.policies.observation_space, number, seed=5)}


def test_command_writes_a_checked_file_once(checkpoint: Path, tmp_path: Path) -> None:
    import onnxruntime

    file = tmp_path / "policy.onnx"
    done = CliRunner().invoke(app, ["export", str(checkpoint), "--onnx", str(file), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["observations"] == NUM_OBSERVATIONS
    assert printed["bytes"] == file.stat().st_size
    assert printed["inputs"] == [{"name": "obs", "dtype": "float32", "shape": ["batch", 3]}]
    assert printed["outputs"] == [
        {"name": "actions", "dtype": "float32", "shape": ["batch", 1]},
        {"name": "q_values", "dtype": "float32", "shape": ["batch", 3]},
    ]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata == printed["metadata"]
    assert (metadata["agent"], metadata["env"], metadata["rlexp_version"]) == ("DQN", "Pendulum-v1", __version__)
    assert str(tmp_path) not in str(metadata)
    before = file.read_bytes()
    again = CliRunner().invoke(app, ["export", str(checkpoint), "--onnx", str(file)])
    assert "exists" in str(again.exception)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_the_file_is_beside_the_checkpoint_unless_another_is_named(checkpoint: Path) -> None:
    file = checkpoint.parent / "policy.onnx"
    done = CliRunner().invoke(app, ["export", str(checkpoint)])
    assert done.exit_code == 0, done.output
    assert done.stderr == f"exporting {checkpoint} to {file} ...\n"
    assert f"wrote    {file}" in done.stdout
    again = CliRunner().invoke(app, ["export", str(checkpoint)])
    assert f"{file} exists" in str(again.exception)
    file.unlink()


def test_actions_are_the_env_s_own(model: bytes, policy: GreedyPolicy) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    obs = observations(policy)["drawn"]
    actions, values = session.run(None, {"obs": obs})
    assert set(actions.ravel()) <= {-2.0, 0.0, 2.0}
    assert (actions[:, 0] == np.array([-2.0, 0.0, 2.0], np.float32)[values.argmax(axis=1)]).all()


def test_model_of_the_checkpoint_is_verified(model: bytes, policy: GreedyPolicy) -> None:
    verification = Verifier(model, policy).verify(observations(policy))
    assert verification.num_observations == {"drawn": 300}
    assert verification.largest_difference < 1e-3
    assert verification.num_other_actions == 0


def test_model_of_other_weights_is_refused(model: bytes, policy: GreedyPolicy) -> None:
    def other(seen: Any) -> tuple[Any, ...]:
        return tuple(values * 1.01 for values in policy.exportable.outputs(seen))

    changed = replace(policy, exportable=replace(policy.exportable, outputs=other))
    with pytest.raises(ExportError, match="q_values of observations drawn: the largest difference is"):
        Verifier(model, changed).verify(observations(policy))


def test_model_that_takes_other_actions_is_refused(model: bytes, policy: GreedyPolicy) -> None:
    worst = replace(policy.exportable, choose=lambda values: values.argmin(axis=1))
    with pytest.raises(ExportError, match="actions of observations drawn: they do not belong to the best"):
        Verifier(model, replace(policy, exportable=worst)).verify(observations(policy))


EQUAL_VALUES = """
<ir_version: 8, opset_import: ["": 18]>
equal (float[batch, 3] obs) => (float[batch, 1] actions, float[batch, 3] q_values)
<float zero = {0.0}, float two = {2.0}, int64[1] columns = {1}> {
    q_values = Mul(obs, zero)
    sum = ReduceSum(q_values, columns)
    actions = Sub(sum, two)
}
"""
"""A model that values each action at 0 and takes the first, -2."""


def test_ties_are_counted_not_refused(policy: GreedyPolicy) -> None:
    import onnx

    def nearly_equal(seen: Any) -> tuple[Any, ...]:
        values = np.zeros((len(seen), 3), np.float32)
        values[0, 1] = 1e-6
        return (values,)

    almost = replace(policy, exportable=replace(policy.exportable, outputs=nearly_equal))
    model = onnx.parser.parse_model(EQUAL_VALUES).SerializeToString()
    verification = Verifier(model, almost).verify(observations(policy))
    assert verification.num_other_actions == 1
    assert verification.largest_difference == pytest.approx(1e-6)


class _Branching(nn.Module):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return (obs, obs) if obs.sum() > 0 else (-obs, obs)


def test_network_that_branches_on_observations_is_refused(policy: GreedyPolicy) -> None:
    with pytest.raises(ExportError, match="cannot be expressed in ONNX") as caught:
        onnx_model(_Branching().eval(), policy.example(2), policy.output_names, {})
    assert "must not branch" in str(caught.value.hint)


def test_model_for_one_size_of_batches_is_refused(policy: GreedyPolicy) -> None:
    import onnx

    fixed = onnx.parser.parse_model(EQUAL_VALUES.replace("batch", "2")).SerializeToString()
    with pytest.raises(ExportError, match="onnxruntime does not compute the ONNX model"):
        Verifier(fixed, policy).verify(observations(policy))


def test_nothing_is_written_where_the_check_fails(
    checkpoint: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    def with_worst_actions(*arguments: object) -> bytes:
        wrong = onnx.load_model_from_string(model)
        (choice,) = (node for node in wrong.graph.node if node.op_type == "ArgMax")
        choice.op_type = "ArgMin"
        return bytes(wrong.SerializeToString())

    monkeypatch.setattr("rlexp.agents.export.export.onnx_model", with_worst_actions)
    done = CliRunner().invoke(app, ["export", str(checkpoint), "--onnx", str(tmp_path / "policy.onnx")])
    assert isinstance(done.exception, ExportError)
    assert done.exception.exit_code == 1
    assert "actions of observations of its episodes" in done.exception.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("run", "env", "model"),
    [
        ("PPO", "Pendulum-v1", {"fcnet_hiddens": [8], "free_log_std": True}),
        ("PQN", "CartPole-v1", {"fcnet_hiddens": [8, 8]}),
        ("PQN", PIXEL_ENV, {"conv_filters": [[4, [4, 4], 2], [5, [5, 5], 1]]}),
        ("PPO", "Pendulum-v1", {"custom_model": "tests.lab.user_torsos:Projected"}),
        ("DQN", "CartPole-v1", {"custom_model": "tests.lab.user_torsos:Normalised"}),
    ],
)
def test_a_model_takes_any_number_of_rows(run: str, env: str, model: dict[str, Any], tmp_path: Path) -> None:
    loaded = LoadedCheckpoint.load(saved_checkpoint(tmp_path, run, env, {"model": model}))
    policy = GreedyPolicy.of(loaded)
    content = onnx_model(policy.graph(), policy.example(2), policy.output_names, {})
    verified = Verifier(content, policy).verify(observations(policy))
    assert verified.num_other_actions is None if run == "PPO" else verified.num_other_actions == 0


def test_a_recurrent_model_takes_a_state_and_returns_the_next(tmp_path: Path) -> None:
    import onnxruntime

    sees = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    model = {"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 3, **sees}
    config = {"env_config": {"space": "multi-discrete"}, "model": model, "observation_filter": "MeanStdFilter"}
    path = saved_checkpoint(tmp_path, "PPO", MATCHING_ENV, config)
    file = tmp_path / "policy.onnx"
    done = CliRunner().invoke(app, ["export", str(path), "--onnx", str(file), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert [each["name"] for each in printed["inputs"]] == ["obs", "state_in", "reward"]
    assert printed["outputs"][-1]["name"] == "state_out"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    policy = TrainedPolicy(LoadedCheckpoint.load(path), False, 0)
    (rows, size), state, reward = printed["inputs"][1]["shape"], None, 0.0
    states, rng = np.zeros((1, size), np.float32), np.random.default_rng(0)
    assert rows == "batch"
    for _ in range(4):
        obs = rng.standard_normal((1, printed["inputs"][0]["shape"][1]), np.float32)
        actions, *_, states = session.run(
            None, {"obs": obs, "state_in": states, "reward": np.array([reward], np.float32)}
        )
        action, state = policy.act(obs[0], state, reward=reward)
        np.testing.assert_allclose(actions[0], action, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(states[0], state, rtol=1e-4, atol=1e-5)
        reward = float(rng.standard_normal())


def test_ppo_with_several_choices(tmp_path: Path) -> None:
    checkpoint = saved_checkpoint(tmp_path, "PPO", MATCHING_ENV, {"env_config": {"space": "multi-discrete"}})
    done = CliRunner().invoke(app, ["export", str(checkpoint), "--onnx", str(tmp_path / "policy.onnx")])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1:5] == [
        ["input", "obs", "float32", "[batch,", "2]"],
        ["output", "actions", "int64", "[batch,", "2]"],
        ["output", "distribution_inputs", "float32", "[batch,", "5]"],
        ["output", "values", "float32", "[batch]"],
    ]
    assert " ".join(lines[5]).startswith("checked on 1000 observations (500 of its episodes, 500 drawn from the space)")
