"""RLlib's example envs: their names in files, spaces, rewards and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from rlexp.config.keys.env_ids import (
    CUT_AFTER,
    RLLIB_ENVS,
    current_env,
    has_continuous_actions,
    has_discrete_actions,
    is_known,
)
from rlexp.envs.make import make_env, rows_per_env, spaces_of
from rlexp.envs.registry import EnvConfig
from rlexp.errors import EnvError, UsageError
from tests.lab.experiment_files import messages, planned

LARGE = Box(-1.0, 1.0, (5000,), np.float32)
CART_POLE = gym.make("CartPole-v1").observation_space
SHOWN = np.array([4.8, 0.41887903], np.float32)
SPACES = {
    "CartPoleCrashing": (CART_POLE, Discrete(2)),
    "RandomEnv": (Discrete(2), Discrete(2)),
    "RandomLargeObsSpaceEnv": (LARGE, Discrete(2)),
    "RandomLargeObsSpaceEnvContActions": (LARGE, Box(-1.0, 1.0, (5,), np.float32)),
    "RepeatAfterMeEnv": (Discrete(2), Discrete(2)),
    "StatelessCartPole": (
        Box(-SHOWN, SHOWN, dtype=np.float32),
        Discrete(2),
    ),
    "TransformedActionPendulum": (gym.make("Pendulum-v1").observation_space, Box(-1.0, 1.0, (1,), np.float32)),
}


def made(name: str, **options: Any) -> gym.Env[Any, Any]:
    env = make_env(EnvConfig(RLLIB_ENVS[name], options))
    env.reset(seed=0)
    return env


def episode(env: gym.Env[Any, Any], action: Any = 0, most: int = 1000) -> tuple[list[float], bool, bool]:
    """Return the rewards of an episode of one action, and how it ended."""
    rewards: list[float] = []
    for _ in range(most):
        observation, reward, terminated, truncated, _ = env.step(action)
        assert env.observation_space.contains(observation)
        rewards.append(float(reward))
        if terminated or truncated:
            return rewards, terminated, truncated
    return rewards, False, False


@pytest.mark.parametrize(
    "name",
    [
        "StatelessCartPole",
        *(f"ray.rllib.examples.{place}.a_module.StatelessCartPole" for place in ("env", "envs.classes")),
    ],
)
def test_files_name_them_as_rllib_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(f"a: {{run: PPO, env: {name}, stop: {{training_iteration: 1}}}}\n")
    (trial,) = plan.trials
    assert trial.experiment.env == "rllib/StatelessCartPole-v0"
    cut = "its episodes, endless in RLlib, are cut after 500 steps"
    assert messages(plan)[0] == f"env: {name} is rllib/StatelessCartPole-v0 now; {cut}"


def test_a_function_of_rllib_is_the_env_that_it_returns() -> None:
    path = "ray.rllib.examples.envs.classes.transformed_action_space_env.transformed_action_space_env"
    assert current_env(path) == ("rllib/TransformedActionPendulum-v0", {})


@pytest.mark.parametrize(
    "name", ["mine:RandomEnv", "mine.RandomEnv", "ray.rllib.examples.env.multi_agent.BasicMultiAgent"]
)
def test_other_classes_are_left_alone(name: str) -> None:
    found = current_env(name)
    assert found is None or found[0] not in RLLIB_ENVS.values()


@pytest.mark.parametrize("name", SPACES)
def test_spaces(name: str) -> None:
    env_id = RLLIB_ENVS[name]
    env = made(name)
    assert (env.observation_space, env.action_space) == SPACES[name]
    assert spaces_of(EnvConfig(env_id))[1] == SPACES[name][1]
    is_continuous = isinstance(env.action_space, Box)
    assert has_continuous_actions(env_id, {}) is is_continuous
    assert has_discrete_actions(env_id, {}) is not is_continuous
    assert is_known(env_id)


@pytest.mark.parametrize("name", SPACES)
def test_a_seed_repeats_an_episode(name: str) -> None:
    action = np.zeros(SPACES[name][1].shape or (), np.float32) if isinstance(SPACES[name][1], Box) else 0
    options = {"p_crash": 0.0} if name == "CartPoleCrashing" else {}
    assert episode(made(name, **options), action) == episode(made(name, **options), action)


class TestRandomEnv:
    def test_steps_end_it_by_chance(self) -> None:
        env = made("RandomEnv", p_done=0.5)
        lengths = []
        for _ in range(200):
            rewards, terminated, truncated = episode(env)
            assert (terminated, truncated) == (True, False)
            assert all(-1 <= reward <= 1 for reward in rewards)
            lengths.append(len(rewards))
            env.reset()
        assert 1.6 < np.mean(lengths) < 2.4

    def test_options_may_be_in_a_mapping(self) -> None:
        assert len(episode(made("RandomEnv", config={"p_terminated": 0.0, "max_episode_len": 7}))[0]) == 7

    def test_static_samples_are_always_the_same(self) -> None:
        for name in ("RandomEnv", "RandomLargeObsSpaceEnv", "RandomLargeObsSpaceEnvContActions"):
            assert len(set(episode(made(name, config={"static_samples": True, "p_done": 0.0}), most=9)[0])) == 1
            assert len(set(episode(made(name, p_done=0.0), most=9)[0])) == 9

    def test_it_may_check_actions(self) -> None:
        made("RandomEnv").step(7)
        with pytest.raises(EnvError, match="the action 7 is not in Discrete"):
            made("RandomEnv", check_action_bounds=True).step(7)

    def test_an_unknown_option_is_named(self) -> None:
        with pytest.raises(UsageError, match="RandomEnv has no option p_don; its options are p_done, "):
            made("RandomEnv", p_don=0.5)


class TestRepeatAfterMe:
    @pytest.mark.parametrize("delay", [0, 1, 3])
    def test_it_pays_for_the_observation_of_so_many_steps_before(self, delay: int) -> None:
        env = made("RepeatAfterMeEnv", repeat_delay=delay, episode_len=30)
        seen = [0] * delay + [env.reset(seed=3)[0]]
        for step in range(20):
            action = seen[-1 - delay] if step % 2 else 1 - seen[-1 - delay]
            observation, reward, *_ = env.step(action)
            assert reward == (1.0 if step % 2 else -1.0)
            seen.append(observation)

    def test_an_episode_has_its_length(self) -> None:
        rewards, terminated, truncated = episode(made("RepeatAfterMeEnv"))
        assert (len(rewards), terminated, truncated) == (100, True, False)

    def test_continuous_ones_pay_the_distance(self) -> None:
        env = made("RepeatAfterMeEnv", config={"continuous": True, "repeat_delay": 0})
        shown, _ = env.reset(seed=1)
        assert env.step(shown)[1] == 0.0
        shown, _ = env.reset(seed=1)
        assert env.step(shown + np.array([0.25, -0.5], np.float32))[1] == pytest.approx(-0.75)
        assert has_continuous_actions(RLLIB_ENVS["RepeatAfterMeEnv"], {"config": {"continuous": True}})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that envs have slept, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr("rlexp.envs.cart_poles.time.sleep", slept.append)
    return slept


class TestCartPoles:
    def test_the_stateless_one_shows_places_only(self) -> None:
        env, whole = made("StatelessCartPole"), gym.make("CartPole-v1")
        shown, state = env.reset(seed=5)[0], whole.reset(seed=5)[0]
        for action in (0, 1, 1, 0):
            np.testing.assert_array_equal(shown, state[[0, 2]])
            (shown, *end), (state, *other_end) = env.step(action), whole.step(action)
            assert end[:3] == other_end[:3]

    @pytest.mark.parametrize("name", ["StatelessCartPole", "CartPoleCrashing"])
    def test_episodes_are_cut(self, name: str) -> None:
        assert CUT_AFTER[RLLIB_ENVS[name]] == 500
        spec = made(name).spec
        assert spec is not None
        assert spec.max_episode_steps == 500

    def test_a_crash_cuts_the_episode(self) -> None:
        env = made("CartPoleCrashing", config={"p_crash": 0.0, "crash_after_n_steps": 5})
        for _ in range(2):
            rewards, terminated, truncated = episode(env)
            assert (len(rewards), terminated, truncated) == (5, False, True)
            env.reset()

    def test_a_crash_may_be_an_exception(self) -> None:
        env = made("CartPoleCrashing", crash_after_n_steps=2, p_crash=0.0, raises=True)
        env.step(0)
        with pytest.raises(EnvError, match="step failed, as p_crash of CartPoleCrashing asks for"):
            env.step(0)

    def test_crashes_come_by_chance(self) -> None:
        env = made("CartPoleCrashing", p_crash=1.0, p_crash_reset=0.0)
        assert episode(env) == ([1.0], False, True)

    def test_a_restart_takes_its_time(self, slept: list[float]) -> None:
        env = made("CartPoleCrashing", init_time_s=2.0, p_crash=0.0, crash_after_n_steps=1)
        env.step(0)
        assert slept == [2.0, 2.0]

    def test_seconds_are_drawn_between_two(self, slept: list[float]) -> None:
        made("CartPoleCrashing", init_time_s_min=2.0, init_time_s_max=3.0)
        made("CartPoleCrashing", init_time_s=[4.0, 5.0])
        assert [int(seconds) for seconds in slept] == [2, 4]

    def test_it_may_stall(self, slept: list[float]) -> None:
        options = {"stall_after_n_steps": 2, "stall_time_sec": 7, "stall_on_worker_indices": [1]}
        env = made("CartPoleCrashing", config={"p_crash": 0.0, **options})
        assert [bool(env.step(action)[3]) for action in (0, 1, 0)] == [False] * 3
        assert slept == [0, 7]


SIZES: dict[str, Any] = {"num_categories": 3, "num_docs_to_select_from": 5, "slate_size": 2}


class TestRecommSys:
    def test_a_user_reads_what_is_of_interest_and_pays_for_it(self) -> None:
        env = made("RecommSys001", **SIZES, num_docs_in_db=8, num_users_in_db=4, user_time_budget=20.0)
        shown, _ = env.reset(seed=1)
        reads, steps, over = 0, 0, False
        while not over:
            overlaps = [float(doc @ shown["user"]) for doc in shown["doc"].values()]
            best, worst = int(np.argmax(overlaps)), int(np.argmin(overlaps))
            shown, reward, over, cut, _ = env.step(np.array([best, worst]))
            assert env.observation_space.contains(shown)
            assert not cut
            clicks = [answer["click"] for answer in shown["response"]]
            paid = [overlaps[index] for index, click in zip((best, worst), clicks, strict=True) if click]
            assert sum(clicks) <= 1
            assert reward == pytest.approx(sum(paid))
            assert sum(answer["engagement"] for answer in shown["response"]) == pytest.approx(reward)
            reads, steps = reads + sum(clicks), steps + 1
        assert reads == 20 <= steps

    def test_documents_are_of_a_fixed_set_or_new(self) -> None:
        fixed, new = made("RecommSys001", **SIZES, num_docs_in_db=5), made("RecommSys001", **SIZES)
        for env, number in ((fixed, 5), (new, 15)):
            seen = {tuple(doc) for _ in range(3) for doc in env.step(np.array([0, 1]))[0]["doc"].values()}
            assert len(seen) == number

    def test_agents_see_vectors(self) -> None:
        shown, actions = spaces_of(EnvConfig(RLLIB_ENVS["RecommSys001"], SIZES))
        assert shown.shape == (5 * 3 + 2 * (2 + 1) + 3,)
        assert actions == MultiDiscrete([5, 5])


def test_pendulum_gets_rescaled_actions() -> None:
    env, plain = made("TransformedActionPendulum", config={"low": 300.0, "high": 500.0}), gym.make("Pendulum-v1")
    env.reset(seed=2), plain.reset(seed=2)
    assert env.action_space == Box(300.0, 500.0, (1,), np.float32)
    for action, torque in ((300.0, -2.0), (400.0, 0.0), (450.0, 1.0)):
        found = env.step(np.array([action], np.float32))
        expected = plain.step(np.array([torque], np.float32))
        np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
        assert found[1] == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("name", ["multi_cartpole", "ray.rllib.examples.envs.classes.multi_agent.MultiAgentCartPole"])
def test_cartpoles_of_several_agents_have_rllibs_names(name: str) -> None:
    env = RLLIB_ENVS["MultiAgentCartPole"]
    assert current_env(name) == (env, {})
    assert rows_per_env(EnvConfig(env, {"config": {"num_agents": 4}})) == 4
