"""Atari as in Mnih et al. 2015: on a scripted game whose every frame is known, and on real ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlexp.agents.workers import reward_limits
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.atari import (
    FRAME_SKIP,
    GAME_OVER,
    GAME_SCORE,
    GAME_STEPS,
    MAX_NOOPS,
    AtariRules,
    NoopStarts,
    SkippedFrames,
    atari_rules,
    deepmind_env,
)
from rlexp.envs.make import make_env, make_vector_env
from rlexp.envs.registry import EnvConfig, FrameConfig, env_config_of, find_spec
from rlexp.errors import UsageError

FRAMES = FrameConfig("deepmind", 84, grayscale=False, framestack=True)
SINGLE = FrameConfig("deepmind", 2, grayscale=False, framestack=False)
NOOP, FIRE, UP = range(3)
ALL_FRAMES = AtariRules(skip=None, max_steps=None, env_arguments={})
"""A step is a frame, all of which are seen."""


class ScriptedGame(gym.Env[Any, Any]):
    """Three lives of LIFE frames each; every frame pays 1 and is as bright as its number; fire is a button."""

    LIFE = 100

    def __init__(self, meanings: tuple[str, ...] = ("NOOP", "FIRE", "UP")) -> None:
        self.observation_space = Box(0, 255, (2, 2), np.uint8)
        self.action_space = Discrete(3)
        self.actions: list[int] = []
        self.resets = 0
        self._meanings = meanings
        self._frame = 0

    def get_action_meanings(self) -> list[str]:
        return list(self._meanings)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._frame, self.actions = 0, []
        self.resets += 1
        return self._observation(), {"lives": 3}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._frame += 1
        self.actions.append(int(action))
        lives = 3 - self._frame // self.LIFE
        return self._observation(), 1.0, lives == 0, False, {"lives": lives}

    def _observation(self) -> Any:
        # Odd frames are dark: sprites that flicker.
        return np.full((2, 2), self._frame % 256 if self._frame % 2 == 0 else 0, np.uint8)


def play(env: gym.Env[Any, Any], action: int = UP) -> tuple[list[float], list[dict[str, Any]]]:
    """Play until a game is over, resetting after each episode; return the episodes' returns and all infos."""
    returns, infos = [0.0], []
    for _ in range(2000):
        _, reward, terminated, truncated, info = env.step(action)
        returns[-1] += float(reward)
        infos.append(info)
        if terminated or truncated:
            _, info = env.reset()
            infos.append(info)
            returns.append(0.0)
        if any(info[GAME_OVER] for info in infos[-2:]):
            return returns[:-1], infos
    raise AssertionError("the game has no end")


def test_atari_episode_is_a_life_and_score_is_of_the_game() -> None:
    game = ScriptedGame(meanings=("NOOP", "RIGHT", "UP"))
    env = deepmind_env(game, SINGLE, ALL_FRAMES)
    env.reset(seed=1)
    noops = len(game.actions)
    returns, infos = play(env)
    # The step that begins a later life is a no-op, whose reward no episode has.
    assert returns == [100 - noops, 99, 99]
    over = [info for info in infos if info[GAME_OVER]]
    assert [(info[GAME_SCORE], info[GAME_STEPS]) for info in over] == [(300 - noops, 300 - noops)]
    assert all(info[GAME_SCORE] == info[GAME_STEPS] == 0 for info in infos if not info[GAME_OVER])
    assert game.resets == 2, "a life lost is no reset"


def test_atari_fires_at_start_of_games_and_lives() -> None:
    game = ScriptedGame()
    env = deepmind_env(game, SINGLE, ALL_FRAMES)
    env.reset(seed=1)
    assert game.actions[0] == FIRE
    assert set(game.actions[1:]) == {NOOP}
    terminated = False
    while not terminated:
        _, _, terminated, _, _ = env.step(NOOP)
    before = len(game.actions)
    env.reset()
    assert game.actions[before:] == [FIRE]


def test_atari_reports_game_that_ends_during_reset() -> None:
    class OneFrameLives(ScriptedGame):
        LIFE = MAX_NOOPS + 3

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, info["lives"] == 2 and action == FIRE, False, info

    env = deepmind_env(OneFrameLives(), SINGLE, ALL_FRAMES)
    env.reset(seed=0)
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step(NOOP)
        assert not info[GAME_OVER]
    _, info = env.reset()
    assert info[GAME_OVER]
    assert info[GAME_SCORE] > 0


def test_atari_horizon_truncates_games() -> None:
    game = ScriptedGame(meanings=("NOOP", "RIGHT", "UP"))
    env = deepmind_env(game, SINGLE, replace(ALL_FRAMES, max_steps=150))
    env.reset(seed=1)
    _, infos = play(env)
    assert [info[GAME_STEPS] for info in infos if info[GAME_OVER]] == [150]


@pytest.mark.parametrize(("fire", "fewest"), [(None, 0), (FIRE, 1)])
def test_atari_noop_starts_are_random(fire: int | None, fewest: int) -> None:
    game = ScriptedGame()
    env = NoopStarts(game, fire)
    env.reset(seed=3)
    counts = [len(game.actions)]
    for _ in range(200):
        env.reset()
        counts.append(len(game.actions))
    assert set(counts) == set(range(fewest, MAX_NOOPS + 1))
    again = ScriptedGame()
    NoopStarts(again, fire).reset(seed=3)
    assert len(again.actions) == counts[0]


def test_atari_frame_skip_shows_maximum_of_last_two() -> None:
    game = ScriptedGame()
    env = SkippedFrames(game, FRAME_SKIP)
    env.reset(seed=0)
    for step in range(1, 4):
        obs, reward, *_ = env.step(UP)
        assert reward == 4.0
        assert (obs == 4 * step).all()
    obs, *_ = env.step(UP)
    game._frame += 1
    obs, *_ = env.step(UP)
    assert (obs == 20).all(), "the brighter of frames 20 and 21, of which the later one is dark"


@pytest.mark.parametrize(("skip", "frames_per_step"), [(4, 4), (3, 3), (None, 1)])
def test_atari_rules_frame_skip(skip: int | None, frames_per_step: int) -> None:
    game = ScriptedGame()
    env = deepmind_env(game, SINGLE, replace(ALL_FRAMES, skip=skip))
    env.reset(seed=0)
    before = len(game.actions)
    env.step(UP)
    assert len(game.actions) - before == frames_per_step


@pytest.mark.parametrize(
    ("env", "env_config", "skip", "max_steps"),
    [
        ("PongNoFrameskip-v4", {}, 4, 27_000),
        ("ALE/Pong-v5", {}, 4, 27_000),
        ("ALE/Pong-v5", {"frameskip": 1}, 4, 27_000),
        ("ALE/Pong-v5", {"frameskip": 3}, 3, 36_000),
        ("ALE/Pong-v5", {"max_num_frames_per_episode": 1001}, 4, 251),
        ("ALE/Pong-v5", {"max_num_frames_per_episode": None}, 4, None),
        ("Pong-v4", {}, None, None),
    ],
)
def test_atari_rules_follow_id_and_arguments(
    env: str, env_config: dict[str, Any], skip: int | None, max_steps: int | None
) -> None:
    arguments = find_spec(env).kwargs
    rules = atari_rules(arguments, env_config, None)
    assert (rules.skip, rules.max_steps) == (skip, max_steps)
    assert atari_rules(arguments, env_config, 100).max_steps == 100


def test_atari_frame_skip_ends_with_the_game() -> None:
    game = ScriptedGame()
    env = SkippedFrames(game, FRAME_SKIP)
    env.reset()
    game._frame = 3 * game.LIFE - 2
    _, reward, terminated, _, _ = env.step(UP)
    assert (reward, terminated) == (2.0, True)


@pytest.mark.parametrize("env", ["PongNoFrameskip-v4", "ALE/Breakout-v5"])
def test_atari_observations_are_four_grey_frames(env: str) -> None:
    vector = make_vector_env(EnvConfig(env, frames=FRAMES), 2)
    obs, _ = vector.reset(seed=0)
    assert obs.shape == (2, 84, 84, 4)
    assert obs.dtype == np.uint8
    assert len(np.unique(obs)) > 3
    seen = []
    for _ in range(30):
        obs, _, _, _, infos = vector.step(np.array([2, 3]))
        seen.append(obs)
    assert infos[GAME_OVER].tolist() == [False, False]
    assert all((later[..., :3] == earlier[..., 1:]).all() for earlier, later in pairwise(seen[:8]))
    assert any((obs[..., 0] != obs[..., 3]).any() for obs in seen)
    vector.close()


def test_atari_breakout_life_is_an_episode() -> None:
    env = make_env(EnvConfig("BreakoutNoFrameskip-v4", frames=FRAMES))
    env.reset(seed=0)
    returns, infos = play(env, action=NOOP)
    assert len(returns) == 5
    assert [info["lives"] for info in infos if info[GAME_OVER]] == [0]


def test_atari_games_are_seeded() -> None:
    def stream(seed: int) -> list[bytes]:
        env = make_env(EnvConfig("PongNoFrameskip-v4", frames=FRAMES))
        obs, _ = env.reset(seed=seed)
        return [obs.tobytes(), *(env.step(step % 6)[0].tobytes() for step in range(60))]

    assert stream(1) == stream(1) != stream(2)


def test_atari_renders_videos() -> None:
    env = make_env(EnvConfig("ALE/Pong-v5", frames=FRAMES), render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (210, 160, 3)


def test_atari_ram_is_a_vector() -> None:
    vector = make_vector_env(EnvConfig("ALE/Pong-v5", {"obs_type": "ram"}, frames=FRAMES), 1)
    assert vector.single_observation_space.shape == (128,)


def test_memory_of_a_game_is_neither_frames_nor_clipped() -> None:
    ram = DQNConfig(env_config={"obs_type": "ram"})
    assert reward_limits(ram, "PongNoFrameskip-v4") is False
    assert reward_limits(DQNConfig(), "PongNoFrameskip-v4") is True


def test_atari_refuses_continuous_actions() -> None:
    config = EnvConfig("ALE/Pong-v5", {"continuous": True}, frames=FRAMES)
    with pytest.raises(UsageError, match="continuous actions") as caught:
        make_env(config)
    assert caught.value.hint == "preprocessor_pref: null"


def test_is_deepmind_atari() -> None:
    assert EnvConfig("ALE/Pong-v5", frames=FRAMES).is_deepmind_atari
    assert not EnvConfig("ALE/Pong-v5", {"obs_type": "ram"}, frames=FRAMES).is_deepmind_atari
    assert not EnvConfig("ALE/Pong-v5", frames=None).is_deepmind_atari
    assert not EnvConfig("CartPole-v1", frames=FRAMES).is_deepmind_atari


def test_atari_drops_flags_of_the_old_registry() -> None:
    config = DQNConfig(env_config={"nondeterministic": False, "frameskip": 3})
    assert env_config_of("ALE/Pong-v5", config, UserModules()).env_config == {"frameskip": 3}
    assert env_config_of("tests.lab.envs:ImageEnv", config, UserModules()).env_config == config.env_config
    make_env(env_config_of("ALE/Pong-v5", config, UserModules())).close()


def test_missing_emulator_has_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)
    monkeypatch.setattr(gym.envs.registration, "registry", {})
    monkeypatch.setattr(gym, "registry", {})
    with pytest.raises(UsageError, match=r"ALE/Pong-v5 needs the Arcade Learning Environment") as caught:
        make_env(EnvConfig("ALE/Pong-v5", frames=FRAMES))
    assert caught.value.hint == "pip install 'rlexp[atari]'"
