"""No agent takes an action that a mask does not allow, or bootstraps from one, wherever it acts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from torch import Tensor

from rlexp.agents.checkpoint import EvaluationRequest, LoadedCheckpoint, evaluate_checkpoint
from rlexp.agents.export.export import export_checkpoint
from rlexp.agents.trained_policy import TrainedPolicy
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import Experiment
from rlexp.errors import UsageError
from rlexp.models.network_config import Masking
from tests.lab import agents, critics, evolution, impala, ppo, pqn, r2d2
from tests.lab.agents import agent_for, checkpoint_of, saved, weights_of
from tests.lab.masks import MASKED_VECTOR, MASKED_WORLD, NUM_ACTIONS, TIC_TAC_TOE, MaskedWorld, watch_bootstraps

OF_DQN = {
    **agents.TINY,
    "sample_batch_size": 4,
    "learning_starts": 32,
    "timesteps_per_iteration": 60,
}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "DQN": ("DQN", OF_DQN),
    "DQN, n-step, no double": ("DQN", {**OF_DQN, "n_step": 3, "double_q": False, "dueling": False}),
    "DQN, softmax": ("DQN", {**OF_DQN, "soft_q": True}),
    "DQN, parameter noise": ("DQN", {**OF_DQN, "parameter_noise": True}),
    "C51": ("DQN", {**OF_DQN, "num_atoms": 5, "v_min": -1, "v_max": 5}),
    "C51, no double": ("DQN", {**OF_DQN, "num_atoms": 5, "v_min": -1, "v_max": 5, "double_q": False}),
    "Rainbow": ("DQN", {**OF_DQN, "num_atoms": 5, "v_min": -1, "v_max": 5, "noisy": True, "n_step": 3}),
    "worker-side priorities": ("DQN", {**OF_DQN, "worker_side_prioritization": True}),
    "C51, worker-side priorities": ("DQN", {**OF_DQN, "num_atoms": 5, "worker_side_prioritization": True}),
    "normalised layers, by autograd": ("DQN", {**OF_DQN, "model": {"fcnet_hiddens": [8], "layer_norm": True}}),
    "filter": ("DQN", {**OF_DQN, "observation_filter": "MeanStdFilter"}),
    "SimpleQ": ("SIMPLEQ", {name: value for name, value in OF_DQN.items() if name != "hiddens"}),
    "APEX": ("APEX", {**OF_DQN, "n_step": 3}),
    "PPO": ("PPO", ppo.TINY),
    "PPO, one torso": ("PPO", {**ppo.TINY, "model": {"fcnet_hiddens": [8], "vf_share_layers": True}}),
    "PPO, filter": ("PPO", {**ppo.TINY, "observation_filter": "MeanStdFilter"}),
    "A2C": ("A2C", {}),
    "A3C": ("A3C", {"num_workers": 0}),
    "PG": ("PG", {}),
    "IMPALA": ("IMPALA", impala.TINY),
    "APPO": ("APPO", {**impala.TINY, "num_sgd_iter": 2}),
    "PQN": ("PQN", pqn.TINY),
    "ES": ("ES", {**evolution.TINY, **evolution.OWN["ES"]}),
    "ARS": ("ARS", {**evolution.TINY, **evolution.OWN["ARS"]}),
    "SAC": ("SAC", {**critics.TINY, **critics.OF_SAC, "timesteps_per_iteration": 100}),
    "SAC, random first": ("SAC", {**critics.TINY, **critics.OF_SAC, "pure_exploration_steps": 1000}),
}


def experiment_of(case: str, env: str = MASKED_WORLD, **more: Any) -> Experiment:
    run, keys = {**CASES, **RECURRENT}[case]
    config = {**keys, "min_iter_time_s": 0.0, **more}
    return AGENTS[run].model_validate({"name": "masked", "run": run, "env": env, "config": config})


@pytest.mark.parametrize("case", CASES)
def test_masked_actions_are_neither_taken_nor_bootstrapped_from(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = watch_bootstraps(monkeypatch)
    agent = agent_for(experiment_of(case))
    for _ in range(3):
        agent.train()
        agent.evaluate(4)
    assert checked or agent.config.playable_actions.spaces != ("Discrete",)


RECURRENT: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "R2D2": ("R2D2", r2d2.TINY),
    "R2D2, worker-side priorities": ("R2D2", {**r2d2.TINY, "worker_side_prioritization": True}),
    "APEX_R2D2": ("APEX_R2D2", r2d2.TINY),
    "PPO with an LSTM": ("PPO", {**ppo.TINY, "model": {"use_lstm": True, "fcnet_hiddens": [8], "lstm_cell_size": 6}}),
}


@pytest.mark.parametrize("case", RECURRENT)
def test_a_memory_does_not_pass_masks_over(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, checked = Masking.of_tensors, []

    def of_tensors(masking: Masking, outputs: Tensor, rows: Tensor) -> Tensor:
        found = own(masking, outputs, rows)
        allowed = rows[:, -NUM_ACTIONS:] != 0
        checked.append(bool(allowed.gather(1, found.argmax(dim=1, keepdim=True)).all()))
        return found

    monkeypatch.setattr(Masking, "of_tensors", of_tensors)
    agent = agent_for(experiment_of(case))
    for _ in range(3):
        agent.train()
        agent.evaluate(4)
    assert checked
    assert all(checked)


@pytest.mark.parametrize("place", ["info", "method"])
@pytest.mark.parametrize("env", [MASKED_WORLD, MASKED_VECTOR])
@pytest.mark.parametrize("case", ["DQN", "PPO"])
def test_masks_of_other_places_are_obeyed(case: str, env: str, place: str) -> None:
    agent = agent_for(experiment_of(case, env, env_config={"place": place}))
    agent.train()
    agent.evaluate(4)


@pytest.mark.parametrize("case", ["PPO", "A2C"])
def test_several_numbers_are_masked(case: str) -> None:
    agent = agent_for(experiment_of(case, env_config={"is_multi": True}))
    for _ in range(3):
        agent.train()
    agent.evaluate(4)


@pytest.mark.parametrize("case", ["DQN", "APEX", "PPO", "SAC"])
def test_images_are_masked_and_convolved(case: str) -> None:
    model = {"conv_filters": [[4, [4, 4], 4]], "post_fcnet_hiddens": [8]}
    agent = agent_for(experiment_of(case, env_config={"see": "image"}, model=model))
    agent.train()
    agent.evaluate(4)
    assert any(array.ndim == 4 for array in weights_of(agent).values())


def test_large_observations_keep_their_masks_in_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = watch_bootstraps(monkeypatch)
    model = {"fcnet_hiddens": [8]}
    agent = agent_for(experiment_of("DQN", f"{__name__}:LargeWorld", model=model, n_step=3))
    for _ in range(3):
        agent.train()
    assert checked


class LargeWorld(MaskedWorld):
    """A MaskedWorld whose observations are large enough to be sent and stored as frames."""

    def __init__(self) -> None:
        super().__init__("info")
        self.observation_space = Box(-1.0, 1.0, (600,), np.float32)

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 600).astype(np.float32)


def saved_case(case: str, folder: Path, **more: Any) -> Path:
    """Return a checkpoint of an agent that trained for an iteration."""
    experiment = experiment_of(case, **more)
    agent = agent_for(experiment)
    agent.train()
    return saved(agent, experiment, folder)


@pytest.mark.parametrize("place", ["observation", "info", "method"])
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("case", ["DQN", "C51", "PPO, filter", "SAC"])
def test_a_loaded_policy_acts_by_masks(case: str, explore: bool, place: str, tmp_path: Path) -> None:
    path = saved_case(case, tmp_path, env_config={"place": place})
    assert evaluate_checkpoint(path, EvaluationRequest(num_episodes=4, explore=explore)).played.is_complete
    policy = TrainedPolicy(LoadedCheckpoint.load(path), explore, 0)
    env = policy.make_env()
    obs, info = env.reset(seed=1)
    for _ in range(200):  # an action that is not allowed would end the world
        mask = {"info": info.get("action_mask"), "method": env.unwrapped._mask, "observation": None}[place]  # type: ignore[attr-defined]
        obs, _, terminated, truncated, info = env.step(policy.act(obs, action_mask=mask))
        if terminated or truncated:
            obs, info = env.reset()
    batch = {name: np.stack([part, part]) for name, part in obs.items()} if place == "observation" else [obs, obs]
    masks = None if place == "observation" else np.stack([env.unwrapped._mask] * 2)  # type: ignore[attr-defined]
    allowed = env.unwrapped._mask  # type: ignore[attr-defined]
    assert allowed[policy.act_batch(batch, action_masks=masks)].all()


def test_a_mask_that_is_missing_or_wrong_is_refused(tmp_path: Path) -> None:
    policy = TrainedPolicy(LoadedCheckpoint.load(saved_case("DQN", tmp_path, env_config={"place": "info"})), False, 0)
    obs = np.zeros(3, np.float32)
    with pytest.raises(UsageError, match="the mask of the 5 actions is missing") as caught:
        policy.act(obs)
    assert "info['action_mask']: act(observation, action_mask=...)" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"has the shape \(2,\), but there are 5 actions"):
        policy.act(obs, action_mask=[1, 0])
    with pytest.raises(UsageError, match="allows no action"):
        policy.act(obs, action_mask=[0] * 5)


def test_a_policy_without_masks_takes_none(tmp_path: Path) -> None:
    policy = TrainedPolicy(LoadedCheckpoint.load(saved_case("DQN", tmp_path, env="CartPole-v1")), False, 0)
    with pytest.raises(UsageError, match="trained without"):
        policy.act(np.zeros(4, np.float32), action_mask=[1, 0])


@pytest.mark.parametrize("case", ["C51", "PPO, filter", "SAC"])
def test_exports_have_the_mask_as_an_input(case: str, tmp_path: Path) -> None:
    import onnxruntime

    exported = export_checkpoint(saved_case(case, tmp_path), tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert [(each.name, each.type) for each in session.get_inputs()] == [
        ("obs", "tensor(float)"),
        ("action_mask", "tensor(int8)"),
    ]
    assert exported.verification.num_other_actions == 0
    rng = np.random.default_rng(0)
    masks = np.eye(NUM_ACTIONS, dtype=np.int8)[rng.integers(NUM_ACTIONS, size=50)]
    inputs = {"obs": rng.normal(size=(50, 3)).astype(np.float32), "action_mask": masks}
    assert (session.run(["actions"], inputs)[0] == masks.argmax(axis=1)).all()


def test_training_continues_bit_by_bit(tmp_path: Path) -> None:
    experiment = experiment_of("DQN", exploration_final_eps=0.5)
    agent = agent_for(experiment)
    agent.train()
    other = agent_for(experiment, checkpoint_of(agent, tmp_path))
    for _ in range(2):
        agent.train()
        other.train()
    weights, others = weights_of(agent), weights_of(other)
    assert all(np.array_equal(array, others[name]) for name, array in weights.items())


def test_a_game_is_learned_faster_with_its_mask() -> None:
    """After 20,000 steps, the mean return of three seeds was 0.78 with the mask, and 0.35 without."""
    keys: dict[str, Any] = {
        "num_envs_per_worker": 16,
        "sample_batch_size": 32,
        "train_batch_size": 512,
        "sgd_minibatch_size": 128,
    }
    keys |= {"num_sgd_iter": 4, "lr": 2e-3, "entropy_coeff": 0.01, "lambda": 0.95, "kl_coeff": 0.0}
    more = {"model": {"fcnet_hiddens": [64, 64]}, "timesteps_per_iteration": 4000}
    masked, plain = (
        agent_for(experiment_of("PPO", TIC_TAC_TOE, action_mask=mask, **keys, **more)) for mask in ("auto", None)
    )
    for agent in (masked, plain):
        agent.train()
    assert masked.evaluate(100).returns.mean() > 0.2 + plain.evaluate(100).returns.mean()
