"""The graph that is exported computes what evaluations play, for every kind of network, filter and action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlexp.agents.export.export import LARGEST_DRAWN, drawn_observations, played_observations
from rlexp.agents.export.onnx import ExportError, refuse_unplayed_actions
from rlexp.agents.export.policy_graph import EnvActions, GreedyPolicy
from rlexp.envs.make import make_vector_env
from rlexp.policy import Policy
from rlexp.sample_batch import Array
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV
from tests.lab.ppo import ECHO_ENV
from tests.unit.agents.export.checkpoints import MATCHING_ENV, loaded_checkpoint

PENDULUM = "Pendulum-v1"
CASES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "vector": ("DQN", "CartPole-v1", {"dueling": True}),
    "filter": ("DQN", "CartPole-v1", {"observation_filter": "MeanStdFilter"}),
    "atoms-and-noise": ("DQN", "CartPole-v1", {"num_atoms": 5, "v_min": -1, "v_max": 1, "noisy": True}),
    "quantiles": ("DQN", "CartPole-v1", {"num_atoms": 5, "distribution": "quantiles"}),
    "parameter-noise": ("DQN", "CartPole-v1", {"parameter_noise": True}),
    "grid": ("DQN", PENDULUM, {"discretize_actions": 5}),
    "images": ("DQN", IMAGE_ENV, {"buffer_size": 100, "timesteps_per_iteration": 20}),
    "categorical": ("PPO", "CartPole-v1", {"model": {"fcnet_hiddens": [8], "vf_share_layers": True}}),
    "normalised": ("PQN", "CartPole-v1", {"dueling": True, "hiddens": [8], "observation_filter": "MeanStdFilter"}),
    "multi-discrete": ("PPO", MATCHING_ENV, {"env_config": {"space": "multi-discrete"}}),
    "normalized": ("PPO", PENDULUM, {"normalize_actions": True, "observation_filter": "MeanStdFilter"}),
    "clipped": ("PPO", ECHO_ENV, {"normalize_actions": False, "clip_actions": True}),
    "unbounded": ("PPO", ECHO_ENV, {"normalize_actions": False, "clip_actions": False}),
    "free-log-std": ("PPO", PENDULUM, {"model": {"fcnet_hiddens": [8], "free_log_std": True}}),
}


def computed(policy: GreedyPolicy, obs: Array) -> list[Array]:
    with torch.inference_mode():
        return [array.numpy() for array in policy.graph()(torch.from_numpy(obs))]


@pytest.mark.parametrize("case", CASES)
def test_graph_equals_evaluation(case: str, tmp_path: Path) -> None:
    loaded = loaded_checkpoint(tmp_path, *CASES[case])
    policy = GreedyPolicy.of(loaded)
    restored = policy.restored
    player = restored.filters.applied_to(restored.policy)
    played = played_observations(player, loaded.env_config, 20, seed=1)
    drawn = drawn_observations(restored.policies.observation_space, 20, seed=2)
    assert isinstance(played, np.ndarray)
    for obs in (played, drawn):
        actions, *outputs = computed(policy, obs)
        for array, expected in zip(outputs, policy.outputs(obs), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-4)
            assert array.dtype == expected.dtype
        np.testing.assert_allclose(actions, policy.env_actions.taken(player.compute_actions(obs)), atol=1e-4)
        assert len(policy.output_names) == 1 + len(outputs)
    refuse_unplayed_actions(policy, {"played": played, "drawn": drawn})


@pytest.mark.parametrize("case", ["grid", "filter", "clipped"])
def test_a_policy_that_plays_other_actions_is_not_exported(case: str, tmp_path: Path) -> None:
    policy = GreedyPolicy.of(loaded_checkpoint(tmp_path, *CASES[case]))
    drawn = drawn_observations(policy.restored.policies.observation_space, 20, seed=2)

    class Masking:
        """Plays the opposite where an observation begins with a positive number."""

        def __init__(self, policy: Any) -> None:
            self._policy = policy

        def compute_actions(self, obs: Array) -> Array:
            actions = self._policy.compute_actions(obs)
            first = obs.reshape(len(obs), -1)[:, 0]
            return np.array([1 - a if positive else a for a, positive in zip(actions, first > 0, strict=True)])

    masked = replace(policy, restored=replace(policy.restored, policy=cast("Policy", Masking(policy.restored.policy))))
    with pytest.raises(ExportError, match=r"plays other actions than those .* drawn"):
        refuse_unplayed_actions(masked, {"drawn": drawn})


@pytest.mark.parametrize("case", ["vector", "grid", "multi-discrete", "normalized", "clipped"])
def test_actions_are_those_that_the_env_gets(case: str, tmp_path: Path) -> None:
    loaded = loaded_checkpoint(tmp_path, *CASES[case])
    policy = GreedyPolicy.of(loaded)
    space = loaded.env_config
    single = make_vector_env(space, 1)
    env_space = single.unwrapped.envs[0].unwrapped.action_space if hasattr(single.unwrapped, "envs") else None
    single.close()
    actions, *_ = computed(policy, drawn_observations(policy.restored.policies.observation_space, 30, seed=3))
    assert actions.dtype == (policy.restored.policies.action_space if env_space is None else env_space).dtype
    if env_space is not None:
        assert all(env_space.contains(action) for action in actions)


def test_grid_has_the_value_of_each_number(tmp_path: Path) -> None:
    loaded = loaded_checkpoint(tmp_path, *CASES["grid"])
    env_actions = EnvActions.of(loaded.env_config, loaded.policy())
    assert env_actions.taken(np.arange(5)).tolist() == [[-2.0], [-1.0], [0.0], [1.0], [2.0]]


def test_bounds_scale_and_clip(tmp_path: Path) -> None:
    loaded = loaded_checkpoint(tmp_path, *CASES["normalized"])
    env_actions = EnvActions.of(loaded.env_config, loaded.policy())
    actions = np.array([[-1.0], [0.5], [3.0]], np.float32)
    assert env_actions.taken(actions).tolist() == [[-2.0], [1.0], [2.0]]
    assert env_actions.as_module()(torch.from_numpy(actions)).tolist() == [[-2.0], [1.0], [2.0]]


def test_filter_is_part_of_the_graph(tmp_path: Path) -> None:
    policy = GreedyPolicy.of(loaded_checkpoint(tmp_path, *CASES["filter"]))
    moments = policy.restored.filters.of_evaluations()
    assert moments is not None
    assert moments.count > 0
    obs = drawn_observations(policy.restored.policies.observation_space, 5, seed=0)
    _, values = computed(policy, obs)
    unfiltered = policy.exportable.outputs(obs)[0]
    assert np.abs(values - unfiltered).max() > 1e-3


def test_drawn_observations_stay_where_float32_networks_do(tmp_path: Path) -> None:
    loaded = loaded_checkpoint(tmp_path, "DQN", COUNTING_ENV, {})
    space = loaded.policy().policies.observation_space
    drawn = drawn_observations(space, 50, seed=0)
    assert drawn.dtype == space.dtype
    assert np.abs(drawn).max() <= LARGEST_DRAWN
    assert (drawn == drawn_observations(space, 50, seed=0)).all()
    assert (drawn != drawn_observations(space, 50, seed=1)).any()
