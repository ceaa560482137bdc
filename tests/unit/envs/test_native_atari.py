"""ale-py's vectorised env plays as the wrappers do: on scripted games of any course, and on real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS, AtariRules, NativeGames, NoopStarts, deepmind_env
from rlexp.envs.make import make_env, make_vector_env
from rlexp.envs.registry import EnvConfig, FrameConfig, env_config_of
from rlexp.errors import UsageError

Array = NDArray[Any]
Vector = VectorEnv[Any, Any, Any]
Step = tuple[Array, Array, Array, Array, Mapping[str, Any]]

FRAMES = FrameConfig("deepmind", 84, grayscale=False, framestack=True)
SIDE = 2
SMALL = FrameConfig("deepmind", SIDE, grayscale=False, framestack=True)
FIRE = 1
NUM_GAMES = 2
SEED = 16
"""Of both games ale-py's env makes a seed below 2**31, which the vectorised one understands too."""
REPORTS = (GAME_OVER, GAME_SCORE, GAME_STEPS)


class ScriptedGame(gym.Env[Any, Any]):
    """Games in turn, each told by the lives that are left after each of its steps; the last step ends it.

    Every step pays its action and the number that its frame is as bright as.
    """

    def __init__(self, games: Sequence[Sequence[int]]) -> None:
        self.observation_space = Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = Discrete(3)
        self._games, self._game, self._step = games, -1, 0

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "UP"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game, self._step = self._game + 1, 0
        return self._observation(), {"lives": 3}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lives = self._games[self._game % len(self._games)]
        self._step += 1
        over = self._step == len(lives)
        return self._observation(), float(self._brightness() + action), over, False, {"lives": lives[self._step - 1]}

    def _observation(self) -> Any:
        return np.full((SIDE, SIDE), self._brightness(), np.uint8)

    def _brightness(self) -> int:
        return (20 * self._game + self._step) % 256


class ScriptedNative(VectorEnv[Any, Any, Any]):
    """ScriptedGames behind the interface of ale-py's vectorised env, which resets on the step after a game's end."""

    def __init__(self, scripts: Sequence[Sequence[Sequence[int]]]) -> None:
        self._games = [ScriptedGame(script) for script in scripts]
        self.num_envs = len(scripts)
        self.single_action_space = Discrete(3)
        self.action_space = gym.spaces.MultiDiscrete([3] * self.num_envs)
        self._over = np.zeros(self.num_envs, bool)
        self._frames = np.zeros((self.num_envs, 1, SIDE, SIDE), np.uint8)
        self._lives = np.zeros(self.num_envs, np.int32)

    def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for index in mask.nonzero()[0]:
            self._begin(index)
        return self._frames.copy(), {"lives": self._lives.copy()}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        rewards = np.zeros(self.num_envs, np.int32)
        for index, action in enumerate(actions):
            if self._over[index]:
                self._begin(index)
                continue
            frame, rewards[index], self._over[index], _, info = self._games[index].step(int(action))
            self._frames[index], self._lives[index] = frame, info["lives"]
        never = np.zeros(self.num_envs, bool)
        return self._frames.copy(), rewards, self._over.copy(), never, {"lives": self._lives.copy()}

    def _begin(self, index: int) -> None:
        frame, info = self._games[index].reset()
        self._frames[index], self._lives[index], self._over[index] = frame, info["lives"], False


class StartsAsTold(NoopStarts):
    """Begins games after as many frames as it is told: the vectorised env draws them with a generator of its own."""

    def __init__(self, env: gym.Env[Any, Any], fire: int | None, told: Callable[[], int]) -> None:
        super().__init__(env, fire)
        self._told = told

    def _num_frames(self) -> int:
        return self._told()


def differences(left: Step, right: Step) -> list[str]:
    """Return what differs between two steps of vector envs."""
    names = ("observation", "reward", "terminated", "truncated")
    differing = [name for name, a, b in zip(names, left[:4], right[:4], strict=True) if not np.array_equal(a, b)]
    return differing + [name for name in REPORTS if not np.array_equal(left[4][name], right[4][name])]


courses = st.lists(st.integers(0, 3), min_size=1, max_size=12)
scripts = st.lists(st.lists(courses, min_size=1, max_size=3), min_size=1, max_size=3)


@settings(deadline=None)
@given(scripts, st.one_of(st.none(), st.integers(1, 9)), st.booleans(), st.integers(0, 2**32 - 1))
def test_native_atari_matches_wrappers_in_scripted_games(
    games: list[list[list[int]]], max_steps: int | None, framestack: bool, seed: int
) -> None:
    frames = FrameConfig("deepmind", SIDE, grayscale=False, framestack=framestack)
    rules = AtariRules(skip=None, max_steps=max_steps, env_arguments={})
    native = NativeGames(ScriptedNative(games), frames, max_steps, first_action=FIRE)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlexp.envs.atari.NoopStarts", lambda env, fire: StartsAsTold(env, fire, lambda: 0))
        makers = [lambda script=script: deepmind_env(ScriptedGame(script), frames, rules) for script in games]
        wrapped = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert native.single_observation_space == wrapped.single_observation_space
    assert np.array_equal(native.reset()[0], wrapped.reset()[0])
    rng = np.random.default_rng(seed)
    for _ in range(60):
        actions = rng.integers(3, size=len(games))
        assert not differences(native.step(actions), wrapped.step(actions))


def compared(env: str, steps: int, horizon: int | None = None, env_config: Mapping[str, Any] | None = None) -> int:
    """Play real games both ways with the same actions, asserting that they are the same; return how many ended.

    Both games get the numbers of frames before their starts from the vectorised env. With the observation
    of a game's end, which no value is computed of, that env shows the frame before once more.
    """
    config = EnvConfig(env, env_config or {}, horizon, frames=FRAMES)
    games = make_vector_env(config, NUM_GAMES)
    assert isinstance(games, NativeGames)
    starts = ToldStarts(games)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlexp.envs.atari.NoopStarts", lambda env, fire: StartsAsTold(env, fire, starts.take))
        wrapped = SyncVectorEnv([lambda: make_env(config)] * NUM_GAMES, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert np.array_equal(games.reset(seed=SEED)[0], wrapped.reset(seed=SEED)[0])
    rng = np.random.default_rng(0)
    actions = rng.integers(games.single_action_space.n, size=(steps, NUM_GAMES))  # type: ignore[attr-defined]
    ended = 0
    for step in range(steps):
        left, right = games.step(actions[step]), wrapped.step(actions[step])
        over = left[4][GAME_OVER]
        ended += int(over.sum())
        left[0][over] = right[0][over]
        assert not differences(left, right), f"step {step}"
    games.close()
    wrapped.close()
    return ended


class ToldStarts:
    """How many frames each new game of ale-py's vectorised env ran before it was played, in order."""

    def __init__(self, games: NativeGames) -> None:
        self._native = games._native
        self._frames = np.full(NUM_GAMES, np.iinfo(np.int32).max)
        self._told: list[int] = []
        self._reset, self._step = self._native.reset, self._native.step
        self._native.reset, self._native.step = self._after_reset, self._after_step  # type: ignore[method-assign]

    def take(self) -> int:
        return self._told.pop(0)

    def _after_reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        obs, infos = self._reset(**arguments)
        self._note(infos["episode_frame_number"])
        return obs, infos

    def _after_step(self, actions: Any) -> Any:
        step = self._step(actions)
        self._note(step[4]["episode_frame_number"])
        return step

    def _note(self, frames: Array) -> None:
        self._told += frames[frames < self._frames].tolist()
        self._frames = frames.copy()


@pytest.mark.parametrize(
    ("env", "steps", "horizon", "env_config"),
    [
        ("PongNoFrameskip-v4", 220, 100, {}),
        ("BreakoutNoFrameskip-v4", 150, 61, {}),
        ("ALE/SpaceInvaders-v5", 320, 150, {"frameskip": 3, "repeat_action_probability": 0.0}),
        ("ALE/Qbert-v5", 400, None, {"full_action_space": True}),
    ],
)
def test_native_atari_matches_wrappers_in_real_games(
    env: str, steps: int, horizon: int | None, env_config: Mapping[str, Any]
) -> None:
    assert compared(env, steps=steps, horizon=horizon, env_config=env_config) > 0


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("game", ["Pong", "Breakout", "SpaceInvaders"])
def test_native_atari_matches_wrappers_for_20000_steps(game: str, sticky: bool) -> None:
    ended = compared(f"ALE/{game}-v5" if sticky else f"{game}NoFrameskip-v4", steps=20_000 // NUM_GAMES)
    assert ended > 10


@pytest.mark.parametrize(
    ("env", "env_config", "frames"),
    [
        ("Pong-v4", {}, FRAMES),
        ("ALE/Pong-v5", {"difficulty": 1}, FRAMES),
        ("ALE/Pong-v5", {"mode": 1}, FRAMES),
        ("ALE/Pong-v5", {}, None),
        ("ALE/Pong-v5", {"obs_type": "ram"}, FRAMES),
    ],
)
def test_native_atari_falls_back_to_wrappers(
    env: str, env_config: Mapping[str, Any], frames: FrameConfig | None
) -> None:
    vector = make_vector_env(EnvConfig(env, env_config, None, frames=frames), 1)
    assert isinstance(vector.unwrapped, SyncVectorEnv)
    vector.close()


def test_unknown_argument_of_a_game_is_refused() -> None:
    with pytest.raises(UsageError, match="no_such_argument"):
        make_vector_env(EnvConfig("ALE/Pong-v5", {"no_such_argument": 1}, frames=FRAMES), 1)


@pytest.mark.parametrize("framestack", [True, False])
def test_native_atari_observations_do_not_change(framestack: bool) -> None:
    frames = FrameConfig("deepmind", 84, grayscale=False, framestack=framestack)
    games = make_vector_env(EnvConfig("ALE/Pong-v5", frames=frames), 2)
    obs, _ = games.reset(seed=0)
    handed_out = [obs, *(games.step(np.array([2, 3]))[0] for _ in range(5))]
    before = [each.copy() for each in handed_out]
    for _ in range(20):
        games.step(np.array([3, 2]))
    assert all(np.array_equal(now, then) for now, then in zip(handed_out, before, strict=True))
    games.close()


def test_native_atari_games_are_seeded_per_copy() -> None:
    def play(seed: int, num_threads: int) -> Array:
        config = EnvConfig("ALE/Pong-v5", frames=FRAMES, num_threads=num_threads)
        games = make_vector_env(config, 2)
        games.reset(seed=seed)
        stream = [games.step(np.array([step % 6, step % 6]))[0] for step in range(40)]
        games.close()
        return np.stack(stream)

    first = play(1, num_threads=1)
    assert np.array_equal(first, play(1, num_threads=2))
    assert not np.array_equal(first, play(2, num_threads=1))
    assert not np.array_equal(first[:, 0], first[:, 1])


@pytest.mark.parametrize(
    ("cpus", "num_threads"),
    [
        ({"num_workers": 2, "num_cpus_per_worker": 3.0}, 3),
        ({"num_workers": 2, "num_cpus_per_worker": 0.5, "num_cpus_for_driver": 4.0}, 1),
        ({"num_workers": 0, "num_cpus_for_driver": 2.0}, 2),
    ],
)
def test_native_atari_uses_threads_of_the_worker(cpus: Mapping[str, Any], num_threads: int) -> None:
    assert env_config_of("ALE/Pong-v5", DQNConfig(**cpus), UserModules()).num_threads == num_threads


def test_native_atari_close_ends_threads() -> None:
    def running() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = running()
    games = make_vector_env(EnvConfig("ALE/Pong-v5", frames=FRAMES, num_threads=2), 2)
    games.reset(seed=0)
    assert running() > before
    games.close()
    games.close()
    assert running() == before
