"""The keys that say how workers explore; each test fails where its key is accepted and ignored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.agent import Agent
from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.exploration import EpsilonGreedy, epsilon_ladder
from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, OBS, Array
from tests.behaviour.rollout_agents import SMALL, make_agent, poll, weights_of
from tests.envs import IDENTITY_ENV, IdentityEnv

SIGMAS = 5


def acted_by(agent: Agent[Any], t: int = 0) -> list[list[float]]:
    """Return the ε of each env at the first step of each worker after ``t`` sampled steps; none where none explores."""
    acted: dict[EpsilonGreedy, list[float]] = {}
    explore = EpsilonGreedy.__call__

    def remember(self: EpsilonGreedy, actions: Array, epsilons: Array) -> Array:
        acted.setdefault(self, epsilons.tolist())
        return explore(self, actions, epsilons)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpsilonGreedy, "__call__", remember)
        poll(agent, t)
    return list(acted.values())


def epsilon_at(t: int, **changes: Any) -> float:
    """Return the ε of every env at its worker's first step after ``t`` sampled steps; the driver must report it too."""
    agent = make_agent(sample_batch_size=1, num_envs_per_worker=2, **changes)
    acted = acted_by(agent, t) or [[0.0, 0.0]]
    agent.optimizer.counters.num_steps_sampled = t
    reported = agent.stats()
    agent.stop()
    assert acted == [[reported["min_exploration"], reported["max_exploration"]]]
    assert acted[0][0] == acted[0][1]
    return acted[0][0]


@pytest.mark.key("exploration_initial_eps", "exploration_final_eps", "epsilon_timesteps")
@pytest.mark.parametrize(("t", "epsilon"), [(0, 0.8), (50, 0.5), (100, 0.2), (10**6, 0.2)])
def test_epsilon_goes_from_its_first_to_its_last_value(t: int, epsilon: float) -> None:
    schedule = {"exploration_initial_eps": 0.8, "exploration_final_eps": 0.2, "epsilon_timesteps": 100}
    assert epsilon_at(t, **schedule) == pytest.approx(epsilon)


@pytest.mark.key("exploration_fraction", "schedule_max_timesteps")
def test_epsilon_takes_a_fraction_of_the_whole_schedule() -> None:
    of_1000 = {"exploration_final_eps": 0.0, "schedule_max_timesteps": 1000}
    assert epsilon_at(100, exploration_fraction=0.2, **of_1000) == pytest.approx(0.5)
    assert epsilon_at(100, exploration_fraction=0.4, **of_1000) == pytest.approx(0.75)
    assert epsilon_at(100, exploration_fraction=0.2, exploration_final_eps=0.0, schedule_max_timesteps=2000) == 0.75


@pytest.mark.key("exploration_warmup_timesteps")
@pytest.mark.parametrize("timesteps", [0, 100])
def test_epsilon_keeps_its_first_value_during_warmup(timesteps: int) -> None:
    schedule = {
        "exploration_initial_eps": 0.8,
        "exploration_final_eps": 0.2,
        "epsilon_timesteps": timesteps,
        "exploration_warmup_timesteps": 500,
    }
    assert epsilon_at(499, **schedule) == 0.8
    assert epsilon_at(500 + timesteps // 2, **schedule) == pytest.approx(0.5 if timesteps else 0.2)
    assert epsilon_at(500 + timesteps, **schedule) == pytest.approx(0.2)


def play(**changes: Any) -> tuple[Array, Array, Array]:
    """Return observations, actions and Q values of a few thousand steps of a worker that does not learn."""
    agent = make_agent(IDENTITY_ENV, num_envs_per_worker=8, sample_batch_size=800, **changes)
    weights = weights_of(agent)
    network = QNetwork(agent.network_config()).eval()
    network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    ((batch, _),) = poll(agent)
    agent.stop()
    with torch.inference_mode():
        values = network(torch.tensor(batch[OBS])).numpy()
    return batch[OBS], batch[ACTIONS], values


def assert_frequencies(actions: Array, chances: Array) -> None:
    """Fail where an action is drawn more than SIGMAS deviations more or less often than its chance says."""
    counts = np.bincount(actions, minlength=len(chances))
    deviations = np.sqrt(len(actions) * chances * (1 - chances))
    assert (np.abs(counts - len(actions) * chances) <= SIGMAS * deviations + 1e-6).all(), (counts, chances)


@pytest.mark.key("soft_q", "softmax_temp")
@pytest.mark.parametrize("temperature", [0.02, 0.2, 50.0])
def test_soft_q_draws_by_the_softmax_of_the_values(temperature: float) -> None:
    obs, actions, values = play(soft_q=True, softmax_temp=temperature)
    for shown in range(IdentityEnv.NUM_ACTIONS):
        mine = obs[:, shown] == 1
        logits = values[mine][0] / temperature
        chances = np.exp(logits - logits.max())
        assert_frequencies(actions[mine], chances / chances.sum())


@pytest.mark.key("soft_q")
@pytest.mark.parametrize("per_worker_exploration", [False, True])
def test_soft_q_takes_the_place_of_epsilon(per_worker_exploration: bool) -> None:
    assert epsilon_at(0, soft_q=True, per_worker_exploration=per_worker_exploration) == 0.0


@pytest.mark.key("noisy")
@pytest.mark.parametrize("per_worker_exploration", [False, True])
def test_noise_takes_the_place_of_epsilon(per_worker_exploration: bool) -> None:
    assert epsilon_at(0, noisy=True, per_worker_exploration=per_worker_exploration) == 0.0


@pytest.mark.key("epsilon_with_noisy")
@pytest.mark.parametrize(("per_worker_exploration", "epsilon"), [(False, 0.7), (True, 0.4)])
def test_noise_leaves_epsilon_as_it_is_where_both_explore(per_worker_exploration: bool, epsilon: float) -> None:
    schedule = {"exploration_initial_eps": 0.7, "epsilon_ladder": "worker"}
    both = {"noisy": True, "epsilon_with_noisy": True, "per_worker_exploration": per_worker_exploration}
    assert epsilon_at(0, **both, **schedule) == epsilon


NO_EPSILON = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


@pytest.mark.key("parameter_noise", "parameter_noise_initial_stddev")
def test_parameter_noise_perturbs_what_workers_do() -> None:
    _, actions, values = play(**NO_EPSILON)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))
    obs, actions, values = play(parameter_noise=True, **NO_EPSILON)
    different = {tuple(actions[shown] for shown in each) for each in np.split(np.arange(len(obs)), len(obs) // 8)}
    assert (actions != values.argmax(axis=1)).any()
    assert len(different) > 1
    _, actions, values = play(parameter_noise=True, parameter_noise_initial_stddev=1e-9, **NO_EPSILON)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))


@pytest.mark.key("parameter_noise")
def test_parameter_noise_leaves_epsilon_as_it_is() -> None:
    schedule = {"exploration_final_eps": 0.2, "epsilon_timesteps": 100}
    assert epsilon_at(0, parameter_noise=True, **schedule) == 1.0
    assert epsilon_at(50, parameter_noise=True, **schedule) == pytest.approx(0.6)
    assert epsilon_at(0, parameter_noise=True, per_worker_exploration=True, epsilon_ladder="worker") == 0.4


@pytest.mark.key("parameter_noise")
def test_parameter_noise_stays_out_of_evaluations() -> None:
    agents = [make_agent(IDENTITY_ENV, parameter_noise=noise) for noise in (False, True)]
    returns = [agent.evaluate(20).returns.tolist() for agent in agents]
    assert returns[0] == returns[1]
    for agent in agents:
        agent.stop()


@pytest.mark.key("explore")
@pytest.mark.parametrize(
    "changes", [{}, {"soft_q": True}, {"per_worker_exploration": True}, {"parameter_noise": True}], ids=str
)
def test_without_exploring_workers_act_greedily(changes: dict[str, Any]) -> None:
    _, explored, values = play(**changes)
    assert (explored != values.argmax(axis=1)).any()
    _, actions, values = play(explore=False, **changes)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))
    assert epsilon_at(0, explore=False, **changes) == 0.0


@pytest.mark.key("explore", "soft_q", "noisy")
@pytest.mark.parametrize("changes", [{"explore": False}, {"soft_q": True}, {"noisy": True}], ids=str)
def test_every_episode_counts_where_no_ladder_explores(changes: dict[str, Any]) -> None:
    agent = make_agent(per_worker_exploration=True, **changes)
    assert agent.reported_epsilon() == math.inf
    agent.stop()


def epsilons(agent_class: Any, config_class: Any, **changes: Any) -> list[list[float]]:
    """Return the ε that each worker of an agent acts with, which must be what the agent reports."""
    config = config_class(**{**SMALL, "sample_batch_size": 1, **changes})
    agent = agent_class(IDENTITY_ENV, config, InlineTaskPool(), 0)
    acted = acted_by(agent)
    reported = agent.stats()
    agent.stop()
    assert reported["exploration_per_worker"] == {str(index): np.mean(each) for index, each in enumerate(acted)}
    assert (reported["min_exploration"], reported["max_exploration"]) == (min(map(min, acted)), max(map(max, acted)))
    return acted


@pytest.mark.key("per_worker_exploration", "epsilon_ladder", "num_workers")
def test_each_worker_or_each_env_has_its_rung() -> None:
    agent: dict[str, Any] = {"num_workers": 3, "num_envs_per_worker": 2, "per_worker_exploration": True}
    settings = {"optimizer": ApexConfig().optimizer.model_copy(update={"sample_queue_depth": 1})}
    by_worker, by_env = epsilon_ladder(3), epsilon_ladder(6)
    assert epsilons(ApexAgent, ApexConfig, **settings, **agent) == [[epsilon] * 2 for epsilon in by_worker]
    assert epsilons(ApexAgent, ApexConfig, epsilon_ladder="worker", **settings, **agent)[0] == [0.4, 0.4]
    assert epsilons(ApexAgent, ApexConfig, epsilon_ladder="env", **settings, **agent) == [
        list(by_env[i : i + 2]) for i in (0, 2, 4)
    ]
    alone = {**agent, "num_workers": 1}
    assert epsilons(ApexAgent, ApexConfig, **settings, **alone) == [list(epsilon_ladder(2))]
    assert epsilons(ApexAgent, ApexConfig, epsilon_ladder="worker", **settings, **alone) == [[0.4, 0.4]]


@pytest.mark.key("per_worker_exploration")
def test_without_a_ladder_all_workers_follow_the_schedule() -> None:
    settings = {"optimizer": ApexConfig().optimizer.model_copy(update={"sample_queue_depth": 1})}
    found = epsilons(ApexAgent, ApexConfig, num_workers=2, per_worker_exploration=False, **settings)
    assert found == [[1.0, 1.0]] * 2
