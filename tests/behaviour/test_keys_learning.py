"""The keys that say what is learned and how; each test fails where its key is accepted and ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.dqn.agent import DQNAgent
from rlexp.config.keys.apex import ApexExperiment
from rlexp.errors import ResourceError
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, OBS, Array
from rlexp.tuning.tune_runner import placement
from tests.lab.agents import (
    MAKERS,
    STEPS,
    TINY,
    Update,
    absolute_td_errors,
    both_agents,
    make_dqn,
    network_of,
    poll,
    updates_of,
)
from tests.lab.envs import ENDLESS_ENV, IDENTITY_ENV

BETA_1 = 0.9
"""Adam's decay of its first moment, which is (1 - BETA_1) times the gradient after the first update."""
NEVER = 10**9
GREEDY: dict[str, Any] = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


def expected_td_errors(agent: DQNAgent[Any], update: Update, double_q: bool) -> Array:
    online, target = (network_of(agent, update.before, prefix) for prefix in ("network.", "target."))
    return absolute_td_errors(update.batch, online, target, selector=online if double_q else target)


@pytest.mark.key("double_q")
@pytest.mark.parametrize("double_q", [True, False])
def test_double_q_lets_the_online_network_choose_the_next_action(double_q: bool) -> None:
    agent = make_dqn("CartPole-v1", double_q=double_q, lr=0.05, target_network_update_freq=NEVER)
    told_apart = 0
    for update in updates_of(agent, 20):
        found = np.asarray(update.result.td_errors)
        np.testing.assert_allclose(found, expected_td_errors(agent, update, double_q), rtol=1e-3, atol=1e-4)
        told_apart += not np.allclose(found, expected_td_errors(agent, update, not double_q), rtol=0.01)
    assert told_apart > 0


def fresh_network(**changes: Any) -> QNetwork:
    """Return the network that a new agent on IdentityEnv learns with."""
    agent = make_dqn(IDENTITY_ENV, **changes)
    with agent.optimizer.paused() as learner:
        network = network_of(agent, learner.state_dict(), "network.")
    agent.stop()
    return network


def values(network: QNetwork) -> Array:
    """Return the action values ``[4, 4]`` of IdentityEnv's four observations."""
    with torch.no_grad():
        return np.asarray(network(torch.eye(4)).numpy())


def last_bias(network: QNetwork) -> torch.Tensor:
    *_, (_, bias) = ((name, tensor) for name, tensor in network.advantage_head.named_parameters() if "bias" in name)
    return bias


@pytest.mark.key("dueling")
@pytest.mark.parametrize("dueling", [True, False])
def test_in_a_dueling_network_only_the_differences_of_the_advantages_count(dueling: bool) -> None:
    network = fresh_network(dueling=dueling)
    before = values(network)
    with torch.no_grad():
        last_bias(network).add_(5.0)
    np.testing.assert_allclose(values(network), before if dueling else before + 5.0, atol=1e-5)


@pytest.mark.key("hiddens")
@pytest.mark.parametrize("hiddens", [[], [7], [7, 5]])
def test_hiddens_are_the_layers_of_both_heads(hiddens: list[int]) -> None:
    network = fresh_network(hiddens=hiddens)
    assert network.value_head is not None
    for head, outputs in ((network.advantage_head, 4), (network.value_head, 1)):
        widths = [len(parameter) for name, parameter in head.named_parameters() if "weight" in name]
        assert widths == [*hiddens, outputs]


def actions_by_observation(**changes: Any) -> list[set[int]]:
    """Return which actions a worker that never learns takes, for each of IdentityEnv's observations."""
    agent = make_dqn(IDENTITY_ENV, num_envs_per_worker=8, sample_batch_size=200, **{**GREEDY, **changes})
    ((batch, _),) = poll(agent)
    agent.stop()
    return [set(batch[ACTIONS][batch[OBS][:, shown] == 1].tolist()) for shown in range(4)]


@pytest.mark.key("noisy")
def test_noisy_layers_explore() -> None:
    assert all(len(actions) > 1 for actions in actions_by_observation(noisy=True))
    assert [len(actions) for actions in actions_by_observation(noisy=False)] == [1] * 4


@pytest.mark.key("sigma0")
def test_sigma0_is_how_far_noisy_layers_explore_at_the_start() -> None:
    assert [len(actions) for actions in actions_by_observation(noisy=True, sigma0=1e-6)] == [1] * 4
    assert all(len(actions) == 4 for actions in actions_by_observation(noisy=True, sigma0=10.0))


@pytest.mark.key("num_atoms", "v_min", "v_max")
@pytest.mark.parametrize(("num_atoms", "v_min", "v_max"), [(3, -1.0, 5.0), (11, 0.0, 1.0)])
def test_values_are_means_over_the_atoms(num_atoms: int, v_min: float, v_max: float) -> None:
    network = fresh_network(num_atoms=num_atoms, v_min=v_min, v_max=v_max)
    with torch.no_grad():
        for parameter in network.advantage_head.parameters():
            parameter.mul_(1e4)
    # A network that is certain of one atom has that atom's value.
    support = np.linspace(v_min, v_max, num_atoms)
    distances = abs(values(network)[:, :, None] - support).min(axis=2)
    assert distances.max() < 1e-4
    assert len(np.unique(values(network).round(4))) > 1
    assert abs(values(fresh_network(num_atoms=1))).max() > 0


@pytest.mark.key("v_max", "v_min", "num_atoms")
def test_returns_beyond_the_outermost_atom_count_as_it() -> None:
    changes: dict[str, Any] = {**GREEDY, "lr": 0.02, "gamma": 0.0, "train_batch_size": 64}
    learned = {}
    for v_max in (0.5, 2.0):
        agent = make_dqn(ENDLESS_ENV, num_atoms=5, v_min=0.0, v_max=v_max, **changes)  # which pays 1
        learned[v_max] = taken_value(agent, updates_of(agent, 60))
    assert learned == {0.5: pytest.approx(0.5, abs=0.1), 2.0: pytest.approx(1.0, abs=0.2)}


@pytest.mark.key("distribution")
@pytest.mark.parametrize(("distribution", "value"), [("categorical", 0.5), ("quantiles", 1.0)])
def test_quantiles_go_beyond_the_outermost_atom(distribution: str, value: float) -> None:
    changes: dict[str, Any] = {**GREEDY, "lr": 0.02, "gamma": 0.0, "train_batch_size": 64, "v_min": 0.0, "v_max": 0.5}
    agent = make_dqn(ENDLESS_ENV, num_atoms=5, distribution=distribution, **changes)  # which pays 1
    assert taken_value(agent, updates_of(agent, 60)) == pytest.approx(value, abs=0.1)


def taken_value(agent: DQNAgent[Any], updates: list[Update]) -> float:
    """Return the mean value of the newest batch's actions, by the weights after it."""
    network, batch = network_of(agent, updates[-1].after, "network."), updates[-1].batch
    with torch.no_grad():
        q_tm1 = network(torch.tensor(batch[OBS])).gather(1, torch.tensor(batch[ACTIONS])[:, None])
    return float(q_tm1.mean())


@pytest.mark.key("lr")
@both_agents
@pytest.mark.parametrize("lr", [1e-4, 1e-2])
def test_lr_is_how_far_the_first_update_goes(run: str, lr: float) -> None:
    # Adam's first step is lr times the sign of the gradient.
    (update,) = updates_of(MAKERS[run](lr=lr), 1)
    assert update.largest_change() == pytest.approx(lr, rel=0.01)
    assert update.result.stats["lr"] == lr


@pytest.mark.key("lr_schedule")
@both_agents
def test_the_lr_schedule_goes_by_the_steps_sampled_and_takes_the_place_of_lr(run: str) -> None:
    timesteps, rates = [100, 200, 300, 301], [1e-2, 1e-3, 1e-3, 1e-12]
    schedule = list(zip(timesteps, rates, strict=True))
    # Held together, or a busy machine could let the workers reach the schedule's end before the first update does.
    agent = MAKERS[run](lr=1.0, lr_schedule=schedule, timesteps_per_iteration=STEPS, training_intensity=1.0)
    updates = updates_of(agent, 20)
    for update in updates:
        # In APEX more may be sampled while the update is under way.
        counters = (update.before["counters"][0], update.after["counters"][0])
        highest, lowest = (float(np.interp(sampled, timesteps, rates)) for sampled in counters)
        assert lowest * 0.999 <= update.result.stats["lr"] <= highest * 1.001
        assert update.largest_change() < 8 * highest  # Adam goes further than lr where gradients agree
    assert updates[0].largest_change() > 1e-3


@pytest.mark.key("lr_schedule")
def test_results_tell_the_lr() -> None:
    agent = make_dqn(lr_schedule=[[0, 1e-2], [1000, 0.0]], timesteps_per_iteration=500)
    assert agent.train()["info"]["learner"]["lr"] == pytest.approx(5e-3)


def first_gradients(update: Update) -> list[tuple[int, Array]]:
    """Return the index and the gradient that Adam saw of each parameter."""
    count = sum(name.endswith("exp_avg") for name in update.after)
    return [(index, update.after[f"adam.{index}.exp_avg"] / (1 - BETA_1)) for index in range(count)]


@pytest.mark.key("adam_epsilon")
@pytest.mark.parametrize("adam_epsilon", [1e-8, 0.1])
def test_adam_epsilon_holds_small_gradients_back(adam_epsilon: float) -> None:
    agent = make_dqn(adam_epsilon=adam_epsilon, grad_norm_clipping=1.0)
    (update,) = updates_of(agent, 1)
    largest = max(float(abs(gradient).max()) for _, gradient in first_gradients(update))
    assert update.largest_change() == pytest.approx(1e-3 * largest / (largest + adam_epsilon), rel=0.01)


@pytest.mark.key("grad_norm_clipping")
@both_agents
@pytest.mark.parametrize("limit", [None, 0.01])
def test_gradients_are_scaled_down_to_the_norm_allowed(run: str, limit: float | None) -> None:
    (update,) = updates_of(MAKERS[run](grad_norm_clipping=limit), 1)
    norm = np.sqrt(sum(float((gradient**2).sum()) for _, gradient in first_gradients(update)))
    unclipped = update.result.stats["grad_norm"]
    assert unclipped > 0.1
    assert norm == pytest.approx(unclipped if limit is None else limit, rel=1e-3)


@pytest.mark.key("train_batch_size")
@both_agents
@pytest.mark.parametrize("size", [8, 24])
def test_so_many_rows_make_a_batch(run: str, size: int) -> None:
    agent = MAKERS[run](train_batch_size=size)
    updates = updates_of(agent, 3)
    assert [len(update.batch) for update in updates] == [size] * 3
    assert [update.num_steps_trained for update in updates] == [0, size, 2 * size]


def target_was_copied(update: Update) -> bool:
    names = [name for name in update.after if name.startswith("target.")]
    same = [(update.after[name] == update.after["network." + name.removeprefix("target.")]).all() for name in names]
    return all(same)


@pytest.mark.key("target_network_update_freq")
@pytest.mark.parametrize("period", [60, 100])
def test_dqn_copies_its_target_network_by_sampled_steps(period: int) -> None:
    updates = updates_of(make_dqn(target_network_update_freq=period), 20)
    copied = [update.num_steps_sampled for update in updates if target_was_copied(update)]
    assert copied == list(range(period, updates[-1].num_steps_sampled + 1, period))


@pytest.mark.key("target_network_update_freq")
@pytest.mark.parametrize("batches", [2, 5])
def test_apex_copies_its_target_network_by_trained_steps(batches: int) -> None:
    agent = MAKERS["APEX"](target_network_update_freq=batches * 16, train_batch_size=16)
    copied = [target_was_copied(update) for update in updates_of(agent, 12)]
    assert copied == [number % batches == 0 for number in range(1, 13)]


@pytest.mark.key("target_network_update_freq")
@both_agents
def test_zero_updates_the_target_network_after_each_update(run: str) -> None:
    assert all(target_was_copied(update) for update in updates_of(MAKERS[run](target_network_update_freq=0), 3))


@pytest.mark.key("tau")
@both_agents
@pytest.mark.parametrize("tau", [0.25, 0.01])
def test_the_target_network_moves_by_a_share_of_the_way(run: str, tau: float) -> None:
    agent = MAKERS[run](tau=tau, target_network_update_freq=0, lr=0.1)
    for update in updates_of(agent, 3):
        for name in (name for name in update.before if name.startswith("target.")):
            online = update.after["network." + name.removeprefix("target.")]
            expected = (1 - tau) * update.before[name] + tau * online
            assert update.after[name] == pytest.approx(expected, abs=1e-6)


@pytest.mark.key("num_gpus")
def test_the_learner_reserves_a_gpu() -> None:
    entry = {"name": "e", "run": "APEX", "env": ENDLESS_ENV, "config": {**TINY, "num_gpus": 0.5}}
    assert placement(ApexExperiment.model_validate(entry)).bundles[0] == {"CPU": 1.0, "GPU": 0.5}


@pytest.mark.key("num_gpus")
@both_agents
def test_the_learner_learns_on_a_gpu_or_says_that_there_is_none(run: str) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="this torch sees no GPU"):
            MAKERS[run](num_gpus=1)
        return
    before = torch.cuda.memory_allocated()
    agent = MAKERS[run](num_gpus=1)
    assert torch.cuda.memory_allocated() > before
    assert len(updates_of(agent, 2)) == 2


@pytest.mark.key("learner_precision")
@both_agents
def test_the_learner_computes_in_its_precision_and_keeps_its_weights_in_float32(run: str) -> None:
    exact, rounded = (updates_of(MAKERS[run](learner_precision=name), 5) for name in ("float32", "bfloat16"))
    assert {array.dtype for name, array in rounded[-1].after.items() if "." in name} == {np.dtype(np.float32)}
    errors = [np.asarray(updates[0].result.td_errors) for updates in (exact, rounded)]
    assert (errors[0] != errors[1]).any()
    np.testing.assert_allclose(errors[1], errors[0], rtol=0.05, atol=0.05)
