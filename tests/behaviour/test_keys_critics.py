"""The keys of DDPG, TD3, APEX_DDPG and SAC; each test fails where its key is ignored.

Losses, targets and steps are compared with numbers in double precision, key by key.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from rlexp.agents.ddpg.agent import CriticAgent, DDPGAgent
from rlexp.agents.ddpg.exploration import NoiseExploration, NoisyActions
from rlexp.agents.ddpg.policy import ExploringPlayer, NetworkPolicy, Players
from rlexp.config.keys.apex import ApexConfig, ApexKeys
from rlexp.config.keys.ddpg import ApexDDPGConfig, DDPGConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.replay_keys import ReplayKeys
from rlexp.errors import TrialError
from rlexp.models.action_distributions import SquashedActions
from rlexp.policy import HasMemory
from rlexp.sample_batch import ACTIONS, REWARDS, Array
from rlexp.schedules import LinearSchedule
from tests.lab.agents import assert_continues, updates_of, weights_of
from tests.lab.critics import (
    AGENTS,
    DISCRETE_ENV,
    OF_DDPG,
    OF_SAC,
    ROWS,
    TINY,
    distance,
    drawn_noise,
    learned,
    make_agent,
    make_batch,
    make_learner,
    policies_of,
    reference_of_ddpg,
    reference_of_sac,
)
from tests.lab.envs import CONTINUOUS_ENV, ContinuousEnv
from tests.lab.ppo import NUMBERS

each_agent = pytest.mark.parametrize("run", sorted(AGENTS))
ACTIONS_OF_TWO = SquashedActions((2,), "float32")
NUM_STEPS = 20_000


def noise(sigma: float = 0.2, base: float | None = 0.1, num_steps: int = NUM_STEPS, **keys: Any) -> Array:
    """Return what is added to actions of 0 in one env ``[T, 2]``."""
    settings: dict[str, Any] = {"scale": LinearSchedule(1.0, 1.0, 0), "theta": 0.15, "random_timesteps": 0} | keys
    explorer = NoisyActions(NoiseExploration(seed=0, sigma=sigma, base=base, **settings), ACTIONS_OF_TWO)
    zeros, never = np.zeros((1, 2), np.float32), np.zeros(1, np.bool_)
    return np.concatenate([explorer.choose(zeros, never, step) for step in range(num_steps)])


@pytest.mark.key("exploration_noise_type", "exploration_ou_theta", "exploration_ou_sigma", "exploration_ou_noise_scale")
@pytest.mark.parametrize(("theta", "sigma"), [(0.15, 0.2), (0.5, 0.1)])
def test_the_process_forgets_and_spreads_as_its_equation_says(theta: float, sigma: float) -> None:
    levels = noise(sigma, 0.1, theta=theta)[1000:]
    wanted = 0.2 * sigma / np.sqrt(1 - (1 - theta) ** 2)
    assert levels.std() == pytest.approx(wanted, rel=0.1)
    lagged = np.corrcoef(levels[1:, 0], levels[:-1, 0])[0, 1]
    assert lagged == pytest.approx(1 - theta, abs=0.05)


@pytest.mark.key("exploration_noise_type", "exploration_gaussian_sigma")
def test_gaussian_noise_is_independent() -> None:
    levels = noise(0.3, None)
    assert levels.std() == pytest.approx(0.3, rel=0.05)
    assert abs(np.corrcoef(levels[1:, 0], levels[:-1, 0])[0, 1]) < 0.05


def test_the_process_is_at_0_when_an_episode_begins() -> None:
    exploration = NoiseExploration(0, 0, LinearSchedule(1.0, 1.0, 0), 0.2, 0.1)
    explorer, zeros = NoisyActions(exploration, ACTIONS_OF_TWO), np.zeros((2, 2), np.float32)
    for _ in range(100):
        explorer.choose(zeros, np.zeros(2, np.bool_), 0)
    levels = explorer.state()["levels"]
    for _ in range(2):  # an agent that waits for the next episode of its env rests for several steps
        explorer.choose(zeros, np.array([True, False]), 0)
    fresh, old = explorer.state()["levels"]
    assert not fresh.any()
    assert np.abs(old - 0.85**2 * levels[1]).max() < 8 * 0.2
    assert old.all()


def test_the_process_is_at_0_when_an_episode_of_an_evaluation_begins() -> None:
    agent = make_agent("DDPG")
    explorer = agent.policies.exploration(0, 1, seed=0).explorer(agent.policies.actions)
    policy = agent.policies.make_policy()
    assert isinstance(policy, NetworkPolicy)
    policy.set_weights(weights_of(agent))
    player = ExploringPlayer(policy, explorer, 2)
    assert isinstance(player, HasMemory)
    for _ in range(100):
        player.compute_actions(np.zeros((2, 3), np.float32))
        player.after_step(np.zeros(2), np.zeros(2, np.bool_))
    before = explorer.state()["levels"]
    assert before.all()
    player.after_step(np.zeros(2), np.array([True, False]))
    assert np.array_equal(explorer.state()["levels"], before * [[0], [1]])
    player.start_episodes(2)
    assert not explorer.state()["levels"].any()


@pytest.mark.key(
    "pure_exploration_steps", "exploration_initial_scale", "exploration_final_scale", "exploration_scale_timesteps"
)
def test_the_scale_goes_from_first_to_last_after_uniform_actions() -> None:
    keys: dict[str, Any] = {
        "exploration_initial_scale": 2.0,
        "exploration_final_scale": 0.5,
        "exploration_scale_timesteps": 100,
    }
    exploration = policies_of("DDPG", NUMBERS, pure_exploration_steps=50, **keys).exploration(0, 1, 0)
    assert isinstance(exploration, NoiseExploration)
    assert [exploration.scale_at(step) for step in (0, 50, 100, 150, 999)] == [2.0, 2.0, 1.25, 0.5, 0.5]
    drawn = noise(0.0, 0.1, 200, random_timesteps=50)
    assert abs(drawn[:50]).max() > 0.9
    assert abs(drawn[50:]).max() == 0


@pytest.mark.key("per_worker_exploration", "num_workers")
def test_each_worker_has_a_constant_scale_of_the_ladder() -> None:
    policies = policies_of("APEX_DDPG", NUMBERS, num_workers=4)
    assert isinstance(policies.exploration(0, 4, 0), NoiseExploration)
    scales = [policies.exploration(index, 4, 0).scale.value(10**6) for index in range(4)]  # type: ignore[attr-defined]
    assert sorted(scales) == pytest.approx([0.4 ** (1 + 7 * index / 3) for index in (3, 2, 1, 0)])
    reported = [index for index in range(4) if policies.reported_envs(index, 4) == (True, True)]
    assert sorted(reported, key=scales.__getitem__) == sorted(range(4), key=scales.__getitem__)[:2]
    assert policies_of("DDPG", NUMBERS).reported_envs(0, 1) is None


@pytest.mark.key("pure_exploration_steps")
@pytest.mark.parametrize(("run", "env"), [("SAC", CONTINUOUS_ENV), ("SAC", DISCRETE_ENV), ("TD3", CONTINUOUS_ENV)])
def test_first_actions_are_uniform(run: str, env: str) -> None:
    agent = make_agent(run, env, pure_exploration_steps=10**6, train_batch_size=256, learning_starts=256)
    (update,) = updates_of(agent, 1)
    actions = update.batch[ACTIONS]
    half = np.abs(actions) > 0.5 if env == CONTINUOUS_ENV else actions >= 500
    assert half.mean() == pytest.approx(0.5, abs=0.1)


class ScalarEnv(ContinuousEnv):
    """Its action is one number, of shape ()."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-2.0, 3.0, (), np.float32)


@each_agent
def test_an_action_may_be_one_number_without_dimensions(run: str) -> None:
    (update,) = updates_of(make_agent(run, f"{__name__}:ScalarEnv"), 1)
    assert update.batch[ACTIONS].shape == (ROWS,)


@pytest.mark.key("twin_q", "actor_hiddens", "critic_hiddens", "actor_hidden_activation", "critic_hidden_activation")
def test_the_networks_have_the_layers_that_were_asked_for() -> None:
    keys: dict[str, Any] = {
        "actor_hiddens": [5, 6],
        "critic_hiddens": [7],
        "actor_hidden_activation": "tanh",
        "twin_q": True,
    }
    network = policies_of("DDPG", NUMBERS, critic_hidden_activation="elu", **keys).network
    assert (network.policy.hiddens, network.policy.activation) == ((5, 6), "tanh")
    assert (network.critic.hiddens, network.critic.activation) == ((7,), "elu")
    assert network.num_critics == 2
    shapes = Players(policies_of("DDPG", NUMBERS, **keys)).weights_shapes
    weights = make_agent("DDPG", **keys).make_learner().get_weights()
    assert {name: array.shape for name, array in weights.items()} == shapes


@pytest.mark.key(
    "policy_model_config.fcnet_hiddens",
    "policy_model_config.fcnet_activation",
    "q_model_config.fcnet_hiddens",
    "q_model_config.fcnet_activation",
    "twin_q",
)
def test_the_networks_of_sac_have_the_layers_that_were_asked_for() -> None:
    policy = {"fcnet_hiddens": [5, 6], "fcnet_activation": "tanh"}
    critic = {"fcnet_hiddens": [7], "fcnet_activation": "elu"}
    network = policies_of("SAC", NUMBERS, policy_model_config=policy, q_model_config=critic, twin_q=False).network
    assert (network.policy.hiddens, network.policy.activation) == ((5, 6), "tanh")
    assert (network.critic.hiddens, network.critic.activation) == ((7,), "elu")
    assert network.num_critics == 1


@each_agent
def test_updates_follow_the_sampled_steps_and_targets_follow_the_updates(run: str) -> None:
    """By default there is one update for each round, and the targets of all but Ape-X move at each of the policy."""
    agent = make_agent(run, num_envs_per_worker=1, sample_batch_size=1, target_network_update_freq=0, tau=0.5)
    updates = updates_of(agent, 4)
    steps = [update.num_steps_sampled for update in updates]
    assert set(np.diff(steps)) <= ({0, 1} if run != "APEX_DDPG" else {0, 1, 2})  # a reset is a round too
    for number, update in enumerate(updates, start=1):
        for name, online in update.after.items():
            if name.startswith("critics.network."):
                target = name.replace(".network.", ".target.")
                expected = 0.5 * update.before[target] + 0.5 * online
                is_moved = run != "TD3" or number % 2 == 0
                assert update.after[target] == pytest.approx(expected if is_moved else update.before[target], abs=1e-6)


@pytest.mark.key("target_network_update_freq", "tau")
def test_targets_of_apex_ddpg_move_by_trained_steps() -> None:
    updates = updates_of(make_agent("APEX_DDPG", target_network_update_freq=3 * 16), 9)
    moved = [
        any(
            not np.array_equal(update.before[name], update.after[name])
            for name in update.before
            if name.startswith("critics.target.")
        )
        for update in updates
    ]
    assert moved == [False, False, True] * 3


@each_agent
def test_a_resumed_trial_learns_what_one_without_a_stop_learns(run: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"checkpoint_replay": True, "pure_exploration_steps": 20}
    assert_continues(partial(make_agent, run, **keys), tmp_path, state_of)


def state_of(agent: CriticAgent[Any]) -> dict[str, Array]:
    with agent.optimizer.paused() as learner:
        return dict(learner.state_dict())


def test_results_say_how_much_noise_there_is() -> None:
    agent = make_agent("DDPG", pure_exploration_steps=0, exploration_final_scale=0.0, exploration_scale_timesteps=120)
    row = agent.train()
    assert isinstance(agent, DDPGAgent)
    share = row["timesteps_total"] / 120
    assert row["info"]["noise_scale"] == pytest.approx(1 - share)
    figures = row["info"]["learner"]
    assert {"critic_loss", "actor_loss", "mean_q", "mean_td_error", "critic_grad_norm"} <= figures.keys()


def test_results_of_sac_have_entropy_and_its_price() -> None:
    figures = make_agent("SAC").train()["info"]["learner"]
    assert figures["alpha"] > 0
    assert {"entropy", "alpha_loss"} <= figures.keys()


@pytest.mark.key("worker_side_prioritization")
@each_agent
def test_first_priorities_of_workers_have_no_effect(run: str) -> None:
    config = make_agent(run, worker_side_prioritization=True, prioritized_replay=True).config
    assert dict(config.ineffective_keys())["worker_side_prioritization"].startswith("workers have no critics")
    assert not config.replay.workers_send_td_errors


@pytest.mark.key("explore")
def test_keys_of_exploration_have_no_effect_where_nothing_explores() -> None:
    keys = {"pure_exploration_steps", "exploration_noise_type", "exploration_final_scale"}
    greedy = make_agent("DDPG", explore=False).config
    assert keys <= {key for key, reason in greedy.ineffective_keys() if reason == "explore is false"}
    ineffective = DQNConfig.model_validate({"explore": False, "parameter_noise": True}).ineffective_keys()
    assert {"epsilon_timesteps", "soft_q", "parameter_noise"} <= {
        key for key, reason in ineffective if reason == "explore is false"
    }
    evaluated = make_agent("DDPG", explore=False, evaluation_config={"explore": True}).config
    assert not keys & dict(evaluated.ineffective_keys()).keys()


@pytest.mark.parametrize(("apex", "agent"), [(ApexConfig, DQNConfig), (ApexDDPGConfig, DDPGConfig)])
def test_keys_that_ape_x_does_not_set_are_those_of_its_agent(apex: type[ApexKeys], agent: type[ReplayKeys]) -> None:
    own = {*ApexKeys.__annotations__, *apex.__annotations__}
    inherited = [name for name in agent.model_fields if name not in own]
    assert not [name for name in inherited if apex.model_fields[name].default != agent.model_fields[name].default]


CLOSE = 2e-6
"""Rounding of float32 in two steps of Adam with a learning rate of 0.01."""


def config_of(run: str, **changes: Any) -> Any:
    own = OF_SAC if run == "SAC" else OF_DDPG
    return AGENTS[run][1].model_validate({**TINY, **own, **changes})


@pytest.mark.key("use_huber", "huber_threshold", "l2_reg", "actor_lr", "critic_lr", "twin_q", "tau")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"twin_q": True},
        {"use_huber": True, "huber_threshold": 0.1},
        {"l2_reg": 0.1},
        {"grad_norm_clipping": 0.1},
        {"actor_lr": 1e-3, "critic_lr": 3e-3},
        {"tau": 1.0},
    ],
    ids=str,
)
def test_an_update_of_ddpg_is_that_of_the_paper(changes: dict[str, Any]) -> None:
    learner, config = make_learner("DDPG", **changes), config_of("DDPG", **changes)
    update = learned(learner, make_batch(9))
    assert distance(update, reference_of_ddpg(config, update)) < CLOSE
    assert all(np.isfinite(figure) for figure in update.result.stats.values())


@pytest.mark.key("smooth_target_policy", "target_noise", "target_noise_clip", "policy_delay")
def test_an_update_of_td3_has_noise_and_delays_the_policy() -> None:
    learner, config = make_learner("TD3"), config_of("TD3")
    for delayed in (True, False):
        noise = np.concatenate([np.zeros((1, ROWS, 2)), drawn_noise(learner, (ROWS, 2), 1)])
        update = learned(learner, make_batch(int(delayed)))
        if delayed:  # Adam's means are 0 only before the first update
            assert distance(update, reference_of_ddpg(config, update, noise, delayed=True)) < CLOSE
        moved = {name.partition(".network.")[0] for name in update.before if _moved(update, name, ".network.")}
        targets = {name for name in update.before if _moved(update, name, ".target.")}
        assert moved == ({"critics"} if delayed else {"critics", "policy"})
        assert bool(targets) is not delayed


def _moved(update: Any, name: str, kind: str) -> bool:
    return kind in name and not np.array_equal(update.before[name], update.after[name])


@pytest.mark.key(
    "optimization.actor_learning_rate",
    "optimization.critic_learning_rate",
    "optimization.entropy_learning_rate",
    "initial_alpha",
    "target_entropy",
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"twin_q": False},
        {"initial_alpha": 0.1},
        {"target_entropy": -7.0},
        {"optimization": {"actor_learning_rate": 1e-3, "critic_learning_rate": 3e-3, "entropy_learning_rate": 1e-4}},
        {"grad_norm_clipping": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("env", [None, DISCRETE_ENV], ids=["continuous", "discrete"])
def test_an_update_of_sac_is_that_of_the_paper(env: str | None, changes: dict[str, Any]) -> None:
    learner, config = make_learner("SAC", env or CONTINUOUS_ENV, **changes), config_of("SAC", **changes)
    noise = None if env else drawn_noise(learner, (ROWS, 2), 2)
    update = learned(learner, make_batch(5, is_discrete=env is not None))
    expected, log_alpha = reference_of_sac(config, update, noise)
    assert distance(update, expected) < CLOSE
    assert update.after["temperature.network.log_alpha"] == pytest.approx(log_alpha, abs=1e-6)
    assert update.result.stats["alpha"] == pytest.approx(config.initial_alpha, rel=1e-5)


def test_priorities_are_the_mean_errors_of_both_critics() -> None:
    learner = make_learner("TD3", smooth_target_policy=False, tau=1.0)
    batch = make_batch(2)
    before, after = (
        learner.learn_on_batch(batch.with_columns(**{REWARDS: batch[REWARDS] + shift})) for shift in (0, 50)
    )
    assert before.td_errors is not None
    assert after.td_errors is not None
    assert after.td_errors == pytest.approx(50, abs=5)
    assert after.stats["mean_td_error"] == pytest.approx(float(after.td_errors.mean()), rel=1e-5)


@pytest.mark.parametrize("run", ["DDPG", "SAC"])
def test_a_loss_that_overflows_ends_the_trial_with_a_remedy(run: str) -> None:
    batch = make_batch().with_columns(**{REWARDS: np.full(ROWS, np.inf, np.float32)})
    with pytest.raises(TrialError, match=r"critic_loss is (nan|inf)[^5]* at update 1$") as caught:
        make_learner(run).learn_on_batch(batch)
    assert caught.value.hint is not None
    assert "lower lr" in caught.value.hint
