"""What every vector env promises a rollout worker, whoever wrote it and whatever steps it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlexp.config.keys.user_code import UserClass
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig, FrameConfig
from tests.lab.envs import COUNTING_ENV, COUNTING_VECTOR_ENV, episode_length, episode_terminates

NUM_ENVS = 3
REGISTERED = "CountingVectors-v0"
ONLY_VECTORS = "OnlyVectors-v0"
COUNTING = {
    "class": EnvConfig(COUNTING_ENV),
    "wrapped class": EnvConfig(COUNTING_ENV, wrappers=(UserClass("tests.lab.wrappers:Unchanged"),)),
    "vector class": EnvConfig(COUNTING_VECTOR_ENV),
    "vector class, cut": EnvConfig(COUNTING_VECTOR_ENV, {}, 1000),
    "wrapped vector class": EnvConfig(COUNTING_VECTOR_ENV, wrappers=(UserClass("tests.lab.wrappers:Unchanged"),)),
    "vector class that is reset by hand, as envs": EnvConfig(REGISTERED, {"autoreset": "Disabled"}),
    "registered vectors": EnvConfig(REGISTERED),
    "registered vectors only": EnvConfig(ONLY_VECTORS),
    "registered vectors only, cut": EnvConfig(ONLY_VECTORS, {}, 1000),
}
DEEPMIND = FrameConfig("deepmind", 42, grayscale=False, framestack=True)
OTHERS = {
    "Gymnasium's": EnvConfig("CartPole-v1", {}, 9),
    "Gymnasium's, one by one": EnvConfig("Acrobot-v1", {}, 9),
    "Atari's": EnvConfig("PongNoFrameskip-v4", {}, 9, frames=DEEPMIND),
    "EnvPool's": EnvConfig("envpool:CartPole-v1"),
    "EnvPool's, cut": EnvConfig("envpool:CartPole-v1", {}, 9),
    "EnvPool's games": EnvConfig("envpool:Pong-v5", {}, 9),
    "wrapped EnvPool's": EnvConfig("envpool:CartPole-v1", {}, 9, wrappers=(UserClass("tests.lab.wrappers:Unchanged"),)),
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gym.register(
        REGISTERED, entry_point="tests.lab.wrappers:CountingEnvOfVectors", vector_entry_point=COUNTING_VECTOR_ENV
    )
    gym.register(ONLY_VECTORS, entry_point=None, vector_entry_point=COUNTING_VECTOR_ENV)
    yield
    del gym.registry[REGISTERED], gym.registry[ONLY_VECTORS]


def stream(config: EnvConfig, seed: int = 5) -> Iterator[list[Any]]:
    """Yield what the vector env returns step by step, the first observations in front; actions are 0 and 1 in turn."""
    vector = make_vector_env(config, NUM_ENVS)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert vector.num_envs == NUM_ENVS
    assert vector.reset(seed=1)[0].shape == (NUM_ENVS, *(vector.single_observation_space.shape or ()))
    yield [vector.reset(seed=seed)[0]]
    step = 0
    while True:
        step += 1
        yield list(vector.step(np.full(NUM_ENVS, step % 2))[:4])


def expected(env_id: int, steps: int) -> Iterator[tuple[list[int], float, bool, bool]]:
    """Yield what a CountingEnv's stream has, worked out by hand: the step after an end shows the next start."""
    episode, step, ended = 0, 0, False
    for _ in range(steps):
        episode, step = (episode + 1, 0) if ended else (episode, step + 1)
        ended = step == episode_length(episode)
        terminates = episode_terminates(episode)
        yield [env_id, episode, step], float(step), ended and terminates, ended and not terminates


@pytest.mark.parametrize("form", COUNTING)
def test_vector_env_counts_as_single_envs_do(form: str) -> None:
    (first,), *steps = islice(stream(COUNTING[form]), 41)
    assert first.tolist() == [[5, 0, 0], [6, 0, 0], [7, 0, 0]]
    for index in range(NUM_ENVS):
        seen = [(o[index].tolist(), float(r[index]), bool(t[index]), bool(c[index])) for o, r, t, c in steps]
        assert seen == list(expected(5 + index, 40))


@pytest.mark.parametrize(
    ("form", "is_native"),
    [("vector class", True), ("registered vectors", True), ("vector class, cut", False), ("wrapped class", False)],
)
def test_vector_env_is_native_where_nothing_changes_single_envs(form: str, is_native: bool) -> None:
    assert isinstance(make_vector_env(COUNTING[form], 2).unwrapped, SyncVectorEnv) is not is_native


@pytest.mark.parametrize("form", OTHERS)
def test_vector_env_ignores_the_action_after_an_end_and_pays_nothing(form: str) -> None:
    if "EnvPool" in form:
        pytest.importorskip("envpool")
    ended, ends = np.zeros(NUM_ENVS, bool), 0
    for obs, rewards, terminated, truncated in islice(stream(OTHERS[form]), 1, 40):
        assert obs.shape[0] == rewards.shape[0] == NUM_ENVS
        assert terminated.dtype == truncated.dtype == np.bool_
        assert not (ended & (terminated | truncated)).any()
        assert not rewards[ended].any()
        ended = terminated | truncated
        ends += ended.sum()
    assert ends > 0


@pytest.mark.parametrize("form", ["EnvPool's", "EnvPool's, cut", "wrapped EnvPool's"])
def test_pool_repeats_itself_with_the_same_seed(form: str) -> None:
    pytest.importorskip("envpool")
    first, again, other = (
        np.concatenate([step[0].reshape(-1) for step in islice(stream(OTHERS[form], seed), 20)]) for seed in (3, 3, 4)
    )
    assert (first == again).all()
    assert (first != other).any()
