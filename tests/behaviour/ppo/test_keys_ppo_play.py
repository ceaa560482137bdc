"""The keys of PPO's actions and networks, in training and evaluation; each test fails where its key is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.rollout.folds import DIST_INPUTS, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, Array
from tests.behaviour.learning_agents import updates_of
from tests.behaviour.ppo.ppo_agents import ECHO_ENV, EchoEnv, make_ppo, network_of, sample_ppo
from tests.behaviour.rollout_agents import weights_of
from tests.envs import COUNTING_ENV, IDENTITY_ENV, PIXEL_ENV

FILTERS = ((4, (4, 4), 2), (5, (5, 5), 1))
"""For the 10 pixels of a PixelEnv."""


@pytest.mark.key("clip_actions", "normalize_actions")
@pytest.mark.parametrize(("clip", "normalize"), [(True, False), (False, False), (False, True), (True, True)])
def test_env_gets_actions_within_its_bounds_and_rows_have_them_as_drawn(clip: bool, normalize: bool) -> None:
    ((batch, _),) = sample_ppo(
        1, ECHO_ENV, clip_actions=clip, normalize_actions=normalize, num_envs_per_worker=1, sample_batch_size=200
    )
    drawn, got = batch[ACTIONS][:-1, 0], batch[OBS][1:, 0]  # the env shows the action that it got
    middle, half = (EchoEnv.HIGH + EchoEnv.LOW) / 2, (EchoEnv.HIGH - EchoEnv.LOW) / 2
    expected = middle + half * drawn if normalize else drawn
    if clip or normalize:
        expected = expected.clip(EchoEnv.LOW, EchoEnv.HIGH)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert drawn.min() < -1.5, "some are out of bounds"


def log_stds(**model: Any) -> tuple[Array, Array]:
    """Return the logarithms of the deviations in the first train batch and in the third."""
    updates = updates_of(make_ppo(ECHO_ENV, model={"fcnet_hiddens": [8], **model}), 3)
    first, third = (updates[number].batch[DIST_INPUTS][:, 1] for number in (0, 2))
    return first, third


@pytest.mark.key("model.free_log_std")
def test_free_deviations_are_learned_but_do_not_depend_on_the_observation() -> None:
    first, third = log_stds(free_log_std=True)
    assert set(first.tolist()) == {0.0}
    assert len(set(third.tolist())) == 1
    assert third[0] != 0.0
    first, _ = log_stds(free_log_std=False)
    assert len(set(first.tolist())) > 1


def outputs(agent: PPOAgent, weights: Mapping[str, Array], obs: Array) -> Mapping[str, Array]:
    """Return what a policy of the agent computes with ``weights``."""
    policy = agent.POLICIES.make_policy(agent.config, agent.observation_space, agent.action_space)
    policy.set_weights(weights)
    return policy.act(obs, np.zeros(len(obs), bool), 0)[1]


@pytest.mark.key("model.vf_share_layers")
@pytest.mark.parametrize("shares", [True, False])
def test_values_are_made_of_the_policys_layers_where_they_share_them(shares: bool) -> None:
    agent = make_ppo(model={"fcnet_hiddens": [8], "vf_share_layers": shares})
    weights = weights_of(agent)
    agent.stop()
    other = {name: 2 * array if name.startswith("policy_torso") else array for name, array in weights.items()}
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    before, after = (outputs(agent, each, obs) for each in (weights, other))
    assert not np.array_equal(before[DIST_INPUTS], after[DIST_INPUTS])
    assert np.array_equal(before[VF_PREDS], after[VF_PREDS]) == (not shares)


@pytest.mark.key("model.vf_share_layers", "vf_loss_coeff")
def test_value_loss_trains_the_policys_layers_where_they_are_shared() -> None:
    moved = {}
    for shares in (True, False):
        first = "policy_torso.0.weight"
        keys: dict[str, Any] = {"model": {"fcnet_hiddens": [8], "vf_share_layers": shares}, "adam_epsilon": 0.1}
        by_coeff = [
            updates_of(make_ppo("CartPole-v1", vf_loss_coeff=coeff, **keys), 1)[0].after[f"network.{first}"]
            for coeff in (0.1, 1.0)
        ]
        moved[shares] = float(abs(by_coeff[1] - by_coeff[0]).max())
    assert moved[True] > 1e-4
    assert moved[False] == 0.0


def shapes(env: str, **model: Any) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of the weights of each torso of a new agent's network."""
    agent = make_ppo(env, preprocessor_pref=None, model=model)
    weights = weights_of(agent)
    agent.stop()
    return {
        torso: [array.shape for name, array in weights.items() if name.startswith(torso) and "weight" in name]
        for torso in ("policy_torso", "value_torso")
    }


@pytest.mark.key("model.fcnet_hiddens", "model.post_fcnet_hiddens", "model.conv_filters", "model.vf_share_layers")
def test_policy_and_values_have_such_layers_each() -> None:
    for layers, env, model in (
        ([(7, 3), (5, 7)], COUNTING_ENV, {"fcnet_hiddens": [7, 5]}),
        ([], COUNTING_ENV, {"fcnet_hiddens": []}),
        ([(7, 3), (6, 7)], COUNTING_ENV, {"fcnet_hiddens": [7], "post_fcnet_hiddens": [6]}),
        ([(4, 3, 4, 4), (5, 4, 5, 5)], PIXEL_ENV, {"conv_filters": FILTERS}),
    ):
        assert shapes(env, **model) == {"policy_torso": layers, "value_torso": layers}
    shared = shapes(COUNTING_ENV, fcnet_hiddens=[7], vf_share_layers=True)
    assert shared == {"policy_torso": [(7, 3)], "value_torso": []}


@pytest.mark.key("model.fcnet_activation", "model.post_fcnet_activation")
def test_workers_and_learner_use_the_same_activations() -> None:
    model = {"fcnet_hiddens": [8], "post_fcnet_hiddens": [6]}
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32) * 3
    values: dict[tuple[str, str], list[float]] = {}
    for name in (("tanh", "relu"), ("relu", "relu"), ("tanh", "elu")):
        agent = make_ppo(model={**model, "fcnet_activation": name[0], "post_fcnet_activation": name[1]})
        with agent.optimizer.paused() as learner:
            network = network_of(agent, learner.state_dict())
        agent.stop()
        found = outputs(agent, weights_of(agent), obs)
        with torch.no_grad():
            np.testing.assert_allclose(found[VF_PREDS], network(torch.tensor(obs))[1].numpy(), rtol=1e-4, atol=1e-6)
        values[name] = found[VF_PREDS].tolist()
    assert len({tuple(each) for each in values.values()}) == 3


@pytest.mark.key("model.conv_filters", "preprocessor_pref")
def test_an_agent_learns_from_pixels() -> None:
    agent = make_ppo(
        PIXEL_ENV,
        preprocessor_pref=None,
        model={"conv_filters": ((8, (4, 4), 2), (16, (5, 5), 1))},
        num_envs_per_worker=8,
        train_batch_size=160,
        sgd_minibatch_size=40,
        lr=3e-3,
    )
    for _ in range(6):
        agent.train()
    assert agent.evaluate(40).returns.mean() == 1.0
    agent.stop()


@pytest.mark.key("evaluation_config.explore")
@pytest.mark.parametrize("explores", [True, False])
def test_evaluations_draw_actions_only_where_they_explore(explores: bool) -> None:
    agent = make_ppo(ECHO_ENV, evaluation_config={"explore": explores, "horizon": 1})
    returns = agent.evaluate(200).returns
    agent.stop()
    # The first policy has means near 0 and deviations near 1, and the env pays its action, which is at least -1.
    assert (returns.std() > 0.5) == explores
    assert returns.min() >= EchoEnv.LOW
    assert (returns.min() == EchoEnv.LOW) == explores


@pytest.mark.key("evaluation_interval", "evaluation_num_episodes")
def test_evaluations_come_every_so_many_iterations() -> None:
    agent = make_ppo(IDENTITY_ENV, evaluation_interval=2, evaluation_num_episodes=7)
    rows = [agent.train() for _ in range(4)]
    agent.stop()
    assert ["evaluation" in row for row in rows] == [False, True, False, True]
    assert rows[1]["evaluation"]["episodes_this_iter"] == 7
