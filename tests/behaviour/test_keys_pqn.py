"""The keys of PQN: what it samples, what its returns are, and how a train batch is learned; fails if one is ignored."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.rollout.folds import VALUE_TARGETS
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.sample_batch import ACTIONS, OBS, Array
from tests.lab.agents import rows, updates_of, weights_of
from tests.lab.envs import COUNTING_ENV, episode_length, episode_terminates
from tests.lab.pqn import distance, make_pqn, q_network_of, reference, sample_pqn


def best_values(agent: Any, obs: Array) -> Array:
    """Return ``max_a Q(s, a)`` of observations ``[B, 3]``, by the weights that the learner has now."""
    with agent.optimizer.paused() as learner:
        network = q_network_of(agent, learner.state_dict())
    with torch.no_grad():
        return np.asarray(network(torch.tensor(obs)).max(dim=1).values)


@pytest.mark.key("gamma", "lambda")
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.65), (0.9, 0.0), (0.9, 1.0), (0.5, 0.65)])
def test_targets_are_the_returns_of_q_lambda(gamma: float, lambda_: float) -> None:
    """Their definition, written out from the last step of each episode or fragment backwards.

    An episode that terminated is worth 0, one that was truncated, or that goes on, the best value of what follows.
    """
    keys: dict[str, Any] = {"num_envs_per_worker": 1, "sample_batch_size": 60, "gamma": gamma, "lambda": lambda_}
    agent = make_pqn(COUNTING_ENV, **keys)
    fragment = agent.source.poll(0) or agent.source.poll(0)
    batch: Any = agent.pool.get(fragment[0].batch, 1.0)
    following_obs = batch[OBS] + np.array([0, 0, 1], np.float32)
    best = best_values(agent, following_obs)
    expected = np.zeros(len(batch))
    for index in range(len(batch) - 1, -1, -1):
        episode, step = batch[OBS][index, 1:].astype(int)
        is_last = step + 1 == episode_length(episode)
        if is_last and episode_terminates(episode):
            following = 0.0
        elif is_last or index == len(batch) - 1:
            following = best[index]
        else:
            following = lambda_ * expected[index + 1] + (1 - lambda_) * best[index]
        expected[index] = (step + 1) + gamma * following
    assert {episode_terminates(int(episode)) for episode in batch[OBS][:, 1]} == {True, False}
    np.testing.assert_allclose(batch[VALUE_TARGETS], expected, rtol=1e-4, atol=1e-4)
    assert set(batch) == {OBS, ACTIONS, VALUE_TARGETS}


@pytest.mark.key("num_sgd_iter", "lr", "adam_epsilon", "grad_norm_clipping")
@pytest.mark.parametrize(
    ("key", "value", "other"),
    [("lr", 1e-3, 1e-2), ("adam_epsilon", 0.1, 0.01), ("grad_norm_clipping", 0.5, 10.0), ("num_sgd_iter", 3, 8)],
)
def test_a_train_batch_is_learned_by_the_equations(key: str, value: float, other: float) -> None:
    # Adam takes no notice of a factor of all gradients, unless its epsilon is large.
    keys: dict[str, Any] = {"adam_epsilon": 0.01, "num_sgd_iter": 8, key: value}
    agent = make_pqn("CartPole-v1", **keys)
    (update,) = updates_of(agent, 1)
    expected, loss = reference(agent.config, update)
    assert distance(update, expected) < 1e-5
    assert update.result.stats["loss"] == pytest.approx(loss, rel=1e-4)
    assert distance(update, reference(agent.config, update, **{key: other})[0]) > 5e-4


@pytest.mark.key("lr_schedule", "lr")
def test_lr_follows_its_schedule_over_sampled_steps() -> None:
    agent = make_pqn(lr=1.0, lr_schedule=[[40, 1e-2], [80, 1e-3]], num_sgd_iter=1, grad_norm_clipping=None)
    updates = updates_of(agent, 3)
    assert [update.result.stats["lr"] for update in updates] == [1e-2, 1e-3, 1e-3]
    assert updates[0].largest_change() == pytest.approx(1e-2, rel=0.01), "Adam's first step is lr"


@pytest.mark.key("train_batch_size", "sample_batch_size", "sgd_minibatch_size", "num_sgd_iter", "num_workers")
@pytest.mark.parametrize(("num_workers", "num_rows", "num_parts"), [(0, 40, 4), (3, 60, 6)])
def test_each_epoch_is_minibatches_of_a_train_batch_of_all_workers(
    num_workers: int, num_rows: int, num_parts: int
) -> None:
    agent = make_pqn(num_workers=num_workers, sgd_minibatch_size=10, num_sgd_iter=2)
    row = agent.train()
    assert row["info"]["num_steps_trained"] == row["timesteps_total"] == num_rows
    assert row["info"]["num_updates"] == 2 * num_parts


@pytest.mark.key("exploration_initial_eps", "exploration_final_eps", "epsilon_timesteps", "explore", "soft_q")
def test_epsilon_falls_with_the_steps_sampled_and_random_actions_with_it() -> None:
    keys: dict[str, Any] = {"exploration_initial_eps": 0.8, "exploration_final_eps": 0.2, "epsilon_timesteps": 120}
    agent = make_pqn(**keys)
    epsilons = [agent.train()["info"]["max_exploration"] for _ in range(4)]
    assert epsilons == pytest.approx([0.6, 0.4, 0.2, 0.2])
    for other in ("explore", "soft_q"):
        changed: dict[str, Any] = {**keys, other: other == "soft_q"}
        assert make_pqn(**changed).train()["info"]["max_exploration"] == 0.0
    assert make_pqn(per_worker_exploration=True).train()["info"]["min_exploration"] == pytest.approx(0.4**8)


@pytest.mark.key("exploration_initial_eps", "explore")
@pytest.mark.parametrize(("changes", "is_greedy"), [({}, False), ({"explore": False}, True)])
def test_workers_act_greedily_but_for_epsilon(changes: dict[str, Any], is_greedy: bool) -> None:
    agent = make_pqn(COUNTING_ENV, **changes)
    samples = sample_pqn(3, COUNTING_ENV, **changes)
    with agent.optimizer.paused() as learner:
        network = q_network_of(agent, learner.state_dict())
    with torch.no_grad():
        greedy = network(torch.tensor(rows(samples, OBS))).argmax(dim=1).numpy()
    assert (rows(samples, ACTIONS) == greedy).all() == is_greedy


@pytest.mark.key("hiddens", "dueling", "model.layer_norm", "model.fcnet_hiddens")
def test_the_network_is_a_normalised_torso_and_heads() -> None:
    assert {name: array.shape for name, array in weights_of(make_pqn()).items()} == {
        "torso.0.weight": (8, 3),
        "torso.0.bias": (8,),
        "torso.1.weight": (8,),
        "torso.1.bias": (8,),
        "advantage_head.0.weight": (2, 8),
        "advantage_head.0.bias": (2,),
    }
    other = make_pqn(hiddens=[5], dueling=True, model={"fcnet_hiddens": [8], "layer_norm": False})
    assert {name: array.shape for name, array in weights_of(other).items() if name.endswith("weight")} == {
        "torso.0.weight": (8, 3),
        "advantage_head.0.weight": (5, 8),
        "advantage_head.2.weight": (2, 5),
        "value_head.0.weight": (5, 8),
        "value_head.2.weight": (1, 5),
    }


@pytest.mark.key("sample_async")
def test_train_batches_are_sampled_ahead_with_the_weights_from_before() -> None:
    """One-step targets of rewards that are known say which weights' values they have."""
    for num_workers, is_ahead in ((2, False), (2, True), (0, True)):
        keys: dict[str, Any] = {"num_workers": num_workers, "sample_async": is_ahead, "lambda": 0.0}
        agent = make_pqn(**keys)
        updates = updates_of(agent, 3)
        for before, update in pairwise(updates):
            obs = torch.tensor(update.batch[OBS] + np.array([0, 0, 1], np.float32))
            of_now, of_before = (q_network_of(agent, each.before)(obs).max(dim=1).values for each in (update, before))
            acted = of_before if is_ahead and num_workers else of_now
            np.testing.assert_allclose(update.batch[VALUE_TARGETS], 1 + 0.99 * acted.detach().numpy(), rtol=1e-4)
            assert not torch.allclose(of_now, of_before, rtol=1e-4)


@pytest.mark.key("seed", "restore")
def test_another_seed_is_another_network_and_a_checkpoint_continues(tmp_path: Path) -> None:
    first, other = make_pqn(seed=0), make_pqn(seed=1)
    assert weights_of(first)["torso.0.weight"].tolist() != weights_of(other)["torso.0.weight"].tolist()
    first.train()
    path = first.save(tmp_path / "checkpoint_000001", {})
    expected = first.train()["info"]["learner"]
    assert make_pqn(checkpoint=read_checkpoint(path)).train()["info"]["learner"] == expected
