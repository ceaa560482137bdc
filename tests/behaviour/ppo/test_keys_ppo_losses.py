"""The keys of PPO that say how a train batch is learned; each test fails where its key is accepted and ignored.

The keys of PPO's actions and networks, in training and evaluation; each test fails where its key is ignored.

Sweeps over trials of PPO: what they see of its results, and what their populations can change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.config.keys.trial import Trial
from rlexp.errors import ConfigError
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, VF_PREDS
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.rows import COLUMNS
from rlexp.sample_batch import ACTIONS, OBS, Array
from tests.lab import sweeps
from tests.lab.agents import Update, updates_of, weights_of
from tests.lab.envs import COUNTING_ENV, PIXEL_ENV
from tests.lab.ppo import ECHO_ENV, EchoEnv, distance, make_ppo, network_of, reference, sample_ppo, watched_minibatches
from tests.lab.sweeps import simulated, sweep_of

EPOCHS = 8
"""So many that ratios and values have left what the batch was sampled with."""


def first_update(env: str = "CartPole-v1", **changes: Any) -> tuple[PPOAgent, Update]:
    agent = make_ppo(env, **{"num_sgd_iter": EPOCHS, **changes})
    (update,) = updates_of(agent, 1)
    return agent, update


@pytest.mark.key("clip_param", "vf_clip_param", "vf_loss_coeff", "kl_coeff", "entropy_coeff")
@pytest.mark.key("num_sgd_iter", "lr", "adam_epsilon", "grad_norm_clipping")
@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("clip_param", 0.02, 0.3),
        ("vf_clip_param", 0.05, 10.0),
        ("vf_loss_coeff", 0.3, 1.0),
        ("vf_loss_coeff", 0.0, 1.0),
        ("kl_coeff", 4.0, 0.2),
        ("kl_coeff", 0.0, 4.0),
        ("entropy_coeff", 0.4, 0.0),
        ("lr", 1e-3, 1e-2),
        ("adam_epsilon", 0.1, 0.01),
        ("grad_norm_clipping", 0.1, None),
        ("num_sgd_iter", 3, EPOCHS),
    ],
)
def test_a_train_batch_is_learned_by_the_equations(key: str, value: float, other: float | None) -> None:
    # Adam takes no notice of a factor of all gradients of a parameter, unless its epsilon is large.
    changes: dict[str, Any] = {"adam_epsilon": 0.01, key: value}
    agent, update = first_update(**changes)
    expected, ignored = reference(agent, update), reference(agent, update, **{key: other})
    assert distance(agent, update, expected) < 1e-4
    assert distance(agent, update, ignored) > 2e-3
    stats = update.result.stats
    names = ("total_loss", "entropy", "kl") + (("vf_loss",) if agent.config.vf_loss_coeff else ())
    for name in names:
        assert stats[name] == pytest.approx(getattr(expected, name), rel=1e-3, abs=1e-5), name


@pytest.mark.key("lr_schedule", "lr")
def test_lr_follows_its_schedule_over_sampled_steps_instead_of_lr() -> None:
    agent = make_ppo(lr=1.0, lr_schedule=[[40, 1e-2], [80, 1e-3], [81, 1e-12]], num_sgd_iter=1)
    updates = updates_of(agent, 4)
    assert [update.result.stats["lr"] for update in updates] == [1e-2, 1e-3, 1e-12, 1e-12]
    assert updates[0].largest_change() == pytest.approx(1e-2, rel=0.01), "Adam's first step is lr"
    assert updates[2].largest_change() < 1e-10


@pytest.mark.key("entropy_coeff_schedule", "entropy_coeff")
def test_entropy_coeff_follows_its_schedule_over_sampled_steps() -> None:
    agent = make_ppo(entropy_coeff=9.0, entropy_coeff_schedule=[[0, 0.0], [80, 0.8]], num_sgd_iter=EPOCHS)
    updates = updates_of(agent, 3)
    assert [update.result.stats["cur_entropy_coeff"] for update in updates] == pytest.approx([0.4, 0.8, 0.8])
    assert distance(agent, updates[0], reference(agent, updates[0], entropy_coeff=0.4)) < 1e-4
    assert distance(agent, updates[0], reference(agent, updates[0], entropy_coeff=9.0)) > 2e-3


@pytest.mark.key("kl_target", "kl_coeff")
@pytest.mark.parametrize(("target_per_kl", "factor"), [(0.4, 1.5), (0.6, 1.0), (1.9, 1.0), (2.1, 0.5)])
def test_kl_coeff_is_adapted_towards_kl_target(target_per_kl: float, factor: float) -> None:
    _, update = first_update(kl_coeff=0.3)
    kl_target = update.result.stats["kl"] * target_per_kl
    updates = updates_of(make_ppo("CartPole-v1", num_sgd_iter=EPOCHS, kl_coeff=0.3, kl_target=kl_target), 2)
    assert [each.result.stats["cur_kl_coeff"] for each in updates] == pytest.approx([0.3, 0.3 * factor])


@pytest.mark.key("kl_coeff")
def test_adapted_kl_coeff_is_in_checkpoints(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"kl_coeff": 1.0, "kl_target": 1e-9}
    agent = make_ppo(**keys)
    agent.train()
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000002", {})
    resumed = make_ppo(checkpoint=read_checkpoint(path), **keys)
    row = resumed.train()
    assert row["info"]["learner"]["cur_kl_coeff"] == pytest.approx(1.5**2)


@pytest.mark.key("sgd_minibatch_size", "num_sgd_iter")
@pytest.mark.parametrize(
    ("minibatch_size", "epochs", "sizes"), [(10, 2, [10] * 4), (16, 3, [20] * 2), (12, 1, [14, 13, 13])]
)
def test_each_epoch_uses_each_row_once_in_minibatches(
    minibatch_size: int, epochs: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched_minibatches(monkeypatch)
    agent = make_ppo(sgd_minibatch_size=minibatch_size, num_sgd_iter=epochs)
    row = agent.train()
    assert [len(part) for part in seen] == sizes * epochs
    assert row["info"]["num_updates"] == len(sizes) * epochs
    assert row["info"]["num_steps_trained"] == 40
    by_epoch = np.concatenate(seen).reshape(epochs, 40)
    assert by_epoch[0].mean() == pytest.approx(0.0, abs=1e-5)
    assert by_epoch[0].std() == pytest.approx(1.0, abs=1e-4), "of the whole train batch"
    for other in by_epoch[1:]:
        assert sorted(other.tolist()) == sorted(by_epoch[0].tolist())
        assert other.tolist() != by_epoch[0].tolist()


@pytest.mark.key("use_critic")
def test_without_a_critic_values_are_not_learned() -> None:
    whole: dict[str, Any] = {"use_gae": False, "batch_mode": "complete_episodes"}
    changed = {}
    for use_critic in (True, False):
        agent, update = first_update(use_critic=use_critic, **whole)
        obs = torch.tensor(update.batch[OBS])
        with torch.no_grad():
            before, after = (network_of(agent, state)(obs)[1] for state in (update.before, update.after))
        changed[use_critic] = float((after - before).abs().max())
        assert np.isfinite(update.batch[ADVANTAGES]).all()
    assert changed[True] > 0.01
    assert changed[False] == 0.0


@pytest.mark.key("kl_coeff")
def test_another_kl_coeff_than_that_of_the_checkpoint_is_the_next_one(tmp_path: Path) -> None:
    agent = make_ppo(kl_coeff=1.0, kl_target=1e-9)
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    resumed = make_ppo(checkpoint=read_checkpoint(path), kl_coeff=0.4, kl_target=1e-9)
    coeffs = [resumed.train()["info"]["learner"]["cur_kl_coeff"] for _ in range(2)]
    assert coeffs == pytest.approx([0.4, 0.6])


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
    policy = agent.policies.make_policy()
    policy.set_weights(weights)
    return policy.act(obs, np.zeros(len(obs), bool), 0)[1]


@pytest.mark.key("model.vf_share_layers")
@pytest.mark.parametrize("shares", [True, False])
def test_values_are_made_of_the_policys_layers_where_they_share_them(shares: bool) -> None:
    agent = make_ppo(model={"fcnet_hiddens": [8], "vf_share_layers": shares})
    weights = weights_of(agent)
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


@pytest.mark.key("evaluation_config.explore")
@pytest.mark.parametrize("explores", [True, False])
def test_evaluations_draw_actions_only_where_they_explore(explores: bool) -> None:
    agent = make_ppo(ECHO_ENV, evaluation_config={"explore": explores, "horizon": 1})
    returns = agent.evaluate(200).returns
    # The first policy has means near 0 and deviations near 1, and the env pays its action, which is at least -1.
    assert (returns.std() > 0.5) == explores
    assert returns.min() >= EchoEnv.LOW
    assert (returns.min() == EchoEnv.LOW) == explores


RATES: dict[str, Any] = {"lr": {"grid_search": [0.1, 0.2]}}


def by_number(trial: Trial, steps: int) -> float:
    """Return a reward by which later trials are better."""
    return float(trial.name.partition("-")[0])


def test_trial_of_ppo_diverges_where_its_total_loss_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = sweeps._row

    def of_ppo(steps: int, iteration: int, steps_of_row: int = 0) -> dict[str, Any]:
        loss = math.inf if steps > 500 else 0.5
        return row(steps, iteration, steps_of_row) | {"info": {"learner": {"total_loss": loss}}}

    monkeypatch.setattr(sweeps, "_row", of_ppo)
    simulation = simulated(sweep_of(tmp_path, RATES, run="PPO"), tmp_path, lambda trial, steps: 1.0)
    errors = [failure.error for failure in simulation.search.standings.failures()]
    assert errors == ["diverged: info/learner/total_loss is inf after 600 env steps"] * 2


@pytest.mark.parametrize(
    "axis",
    [
        {"clip_param": {"uniform": [0.1, 0.3]}},
        {"entropy_coeff": {"uniform": [0.0, 0.1]}},
        {"train_batch_size": {"choice": [1000, 4000]}},
        {"kl_coeff": {"uniform": [0.1, 0.3]}},
        {"lambda": {"uniform": [0.9, 1.0]}},
    ],
)
def test_populations_can_change_what_ppo_learns_with(axis: dict[str, Any], tmp_path: Path) -> None:
    search = {"scheduler": "pbt", "num_samples": 4, "pbt": {"perturbation_interval": 200}}
    (key,) = axis
    simulation = simulated(sweep_of(tmp_path, axis, search, run="PPO"), tmp_path, by_number)
    changed = [exploit["after"] for exploit in simulation.saved["exploits"]]
    assert changed
    assert {name for each in changed for name in each} == {key}
    assert any(exploit["after"] != exploit["before"] for exploit in simulation.saved["exploits"])


@pytest.mark.parametrize("key", ["num_learners", "use_critic"])
def test_populations_cannot_change_processes_or_networks_of_ppo(key: str, tmp_path: Path) -> None:
    values = {"num_learners": [1, 2], "use_critic": [True, False]}[key]
    search = {"scheduler": "pbt", "num_samples": 2, "pbt": {"perturbation_interval": 200}}
    keys: dict[str, Any] = {"use_gae": False, "batch_mode": "complete_episodes", key: {"choice": values}}
    with pytest.raises(ConfigError) as caught:
        sweep_of(tmp_path, keys, search, run="PPO")
    (problem,) = caught.value.problems
    assert problem.message.endswith("with scheduler: pbt, whose trials copy each other's weights")


def test_every_figure_of_ppo_has_a_column() -> None:
    agent = make_ppo()
    row = agent.train()
    names = {f"info/learner/{name}" for name in row["info"]["learner"]}
    assert names <= {*COLUMNS, *agent.config.AGENT_COLUMNS}
    assert "info/num_target_updates" not in {*COLUMNS, *agent.config.AGENT_COLUMNS}
