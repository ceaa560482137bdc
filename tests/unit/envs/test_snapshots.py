"""An env goes on from its snapshot as it would have, or has none."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from contextlib import closing
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig, FrameConfig
from rlexp.envs.snapshots import restore_snapshot, take_snapshot
from rlexp.states import join_state, split_state
from tests.lab.envs import COUNTING_ENV, OPAQUE_ENV, PIXEL_ENV

Vector = VectorEnv[Any, Any, Any]
GRID_ENV = "tests.unit.envs.test_snapshots:GridEnv"
FRAMES = FrameConfig("deepmind", dim=20, grayscale=False, framestack=True)
CONFIGS = {
    "native": EnvConfig("CartPole-v1"),
    "native, cut": EnvConfig("CartPole-v1", {}, 7),
    "sync": EnvConfig("Acrobot-v1", {}, 15),
    "tuples": EnvConfig("MountainCar-v0", {}, 11),
    "flattened": EnvConfig("FrozenLake-v1", {}, 6),
    "user's own": EnvConfig(COUNTING_ENV),
    "several agents": EnvConfig("rllib/MultiAgentCartPole-v0", {"num_agents": 3}, 20),
    "scaled": EnvConfig(PIXEL_ENV, {"size": 40}, frames=FRAMES),
    "numbered actions": EnvConfig("Pendulum-v1", {}, 9, discretize_actions=5),
    "scaled actions": EnvConfig("Pendulum-v1", {}, 9, continuous_actions="normalized"),
    "clipped actions": EnvConfig("MountainCarContinuous-v0", {}, 9, continuous_actions="clipped"),
    "flattened, scaled actions": EnvConfig(GRID_ENV, {}, 9, continuous_actions="normalized"),
}


def stored(snapshot: dict[str, Any] | None) -> dict[str, Any]:
    """Return a snapshot as a checkpoint gives it back."""
    assert snapshot is not None
    arrays, rest = split_state(snapshot)
    return join_state({name: np.array(array) for name, array in arrays.items()}, json.loads(json.dumps(rest)))


def contents(snapshot: dict[str, Any] | None) -> tuple[str, dict[str, bytes]]:
    """Return what a checkpoint would hold of a snapshot: JSON, and the bytes of the arrays."""
    assert snapshot is not None
    arrays, values = split_state(snapshot)
    return json.dumps(values), {name: np.array(array).tobytes() for name, array in arrays.items()}


def played(env: Vector, steps: int, seed: int) -> list[bytes]:
    """Return all that an env says in so many steps of random actions."""
    rng = np.random.default_rng(seed)
    actions = env.single_action_space
    said = []
    for _ in range(steps):
        shape = env.action_space.shape or ()
        chosen = rng.integers(actions.n, size=shape) if isinstance(actions, Discrete) else rng.normal(size=shape)
        obs, rewards, terminated, truncated, _ = env.step(chosen)
        said.append(b"".join(np.asarray(part).tobytes() for part in (obs, rewards, terminated, truncated)))
    return said


class GridEnv(gym.Env[Any, Any]):
    """Shows the sum ``[2, 2]`` of the actions it got, and noise."""

    observation_space, action_space = Box(-np.inf, np.inf, (2, 2), np.float64), Box(-3, 5, (2, 2), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._sum = self.np_random.normal(size=(2, 2))
        return self._sum.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._sum += action
        return self._sum + self.np_random.normal(size=(2, 2)), float(self._sum.sum()), False, False, {}


@pytest.mark.parametrize("name", CONFIGS)
def test_restored_env_continues_like_the_original(name: str) -> None:
    """Short episodes: within so many steps some envs are at their end and about to be reset."""
    original, copy, again = (make_vector_env(CONFIGS[name], 3) for _ in range(3))
    original.reset(seed=5)
    for step in range(20):
        played(original, 1, seed=step)
        snapshot = stored(take_snapshot(original))
        copy.reset(seed=77)
        played(copy, step % 4, seed=1)
        assert restore_snapshot(copy, snapshot)
        again.reset(seed=78)
        assert restore_snapshot(again, stored(take_snapshot(copy)))
        assert played(copy, 30, seed=step) == played(again, 30, seed=step)
    assert restore_snapshot(again, stored(take_snapshot(original)))
    assert played(again, 60, seed=0) == played(original, 60, seed=0)


def test_env_that_is_native_among_others_continues_alone() -> None:
    original, copy = (make_vector_env(CONFIGS["native, cut"], 1) for _ in range(2))
    original.reset(seed=5)
    played(original, 10, seed=0)
    copy.reset(seed=77)
    assert restore_snapshot(copy, stored(take_snapshot(original)))
    assert played(copy, 30, seed=1) == played(original, 30, seed=1)


def test_names_of_ours_in_snapshots_stay() -> None:
    """Under other names, the envs of a checkpoint are not restored: episodes of a resumed run begin anew."""
    names: set[str] = set()
    for config in CONFIGS.values():
        with closing(make_vector_env(config, 2)) as env:
            names |= set(re.findall(r'"(rlexp\.[^"]*)"', contents(take_snapshot(env))[0]))
    assert names == {
        "rlexp.envs.checked_env.CheckedEnv",
        "rlexp.envs.make.make_vector_env.<locals>.<lambda>",
        "rlexp.envs.parallel_envs.AgentRows",
        "rlexp.envs.rllib_envs.IndependentEnvs",
        "rlexp.envs.spaces.ActionBounds",
        "rlexp.envs.spaces.BoundedActions",
        "rlexp.envs.spaces.DiscreteActions",
        "rlexp.envs.wrappers.AreaMean",
        "rlexp.envs.wrappers.ScaledFrames",
    }


def test_snapshot_does_not_change_with_the_env() -> None:
    env = make_vector_env(CONFIGS["native"], 2)
    env.reset(seed=1)
    snapshot = take_snapshot(env)
    before = contents(snapshot)
    played(env, 5, seed=0)
    assert before == contents(snapshot)


class Phase(Enum):
    RED = 1
    GREEN = 2


class HolderEnv(gym.Env[Any, Any]):
    """Has what a test gives it."""

    def __init__(self, **held: Any) -> None:
        self.observation_space, self.action_space = Box(0, 1, (2,)), Discrete(2)
        for name, value in held.items():
            setattr(self, name, value)

    held: Any


def copied(env: HolderEnv, **has: Any) -> HolderEnv:
    """Return another env, which had ``has``, restored from a snapshot of ``env``."""
    other = HolderEnv(**has)
    assert restore_snapshot(other, stored(take_snapshot(env)))
    return other


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | hnp.arrays(
        st.sampled_from([np.dtype(code) for code in ("?", "u1", "i8", "f4", "f8", ">f8", "S3", "U2", "c16")]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    )
    | hnp.from_dtype(np.dtype(np.float32), allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=2)), inner)
    ),
    max_leaves=8,
)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


@settings(deadline=None)
@given(plain_values)
def test_snapshot_restores_plain_data(value: Any) -> None:
    assert_equal(copied(HolderEnv(held=value)).held, value)


def test_restored_arrays_keep_memory_order_and_are_writable() -> None:
    by_column = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    found = copied(HolderEnv(held=by_column)).held
    np.testing.assert_array_equal(found, by_column)
    assert found.flags.f_contiguous
    found[0, 0] = 7.0


def test_snapshot_keeps_shared_objects_shared() -> None:
    position = np.zeros(2)
    found = copied(HolderEnv(position=position, target=position, both=[position], path=[1]))
    found.position[0] = 5.0  # type: ignore[attr-defined]
    assert found.target[0] == found.both[0][0] == 5.0  # type: ignore[attr-defined]


def test_snapshot_of_env_that_refers_to_itself() -> None:
    env = HolderEnv(number=3)
    env.held = [env]
    found = HolderEnv(number=1)
    found.held = [found]
    assert restore_snapshot(found, stored(take_snapshot(env)))
    assert found.held == [found]
    assert found.number == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_snapshot_restores_random_streams(kind: Any) -> None:
    generator = np.random.Generator(kind(4))
    generator.normal(size=3)
    generator.integers(10, dtype=np.uint32)
    found = copied(HolderEnv(held=generator), held=np.random.default_rng(0))
    assert found.held.normal(size=50).tolist() == generator.normal(size=50).tolist()


def test_snapshot_keeps_stateless_values_and_restores_enums() -> None:
    env = HolderEnv(phase=Phase.GREEN, rule=sorted_later, kind=Phase, dtype=np.dtype(np.float32), room=json)
    found = copied(env, phase=Phase.RED, rule=sorted_later, kind=Phase, dtype=np.dtype(np.float32), room=json)
    assert found.phase is Phase.GREEN  # type: ignore[attr-defined]


def sorted_later() -> None:
    """A rule that an env goes by."""


class SlottedEnv(HolderEnv):
    __slots__ = ("hidden",)


SHARED = np.arange(6.0)


@pytest.mark.parametrize(
    "held",
    [
        {"lock": threading.Lock()},
        {"steps": iter([1, 2])},
        {"helper": HolderEnv.__new__},
        {"draw": np.random.default_rng(0).random},
        {"names": {"a", "b"}},
        {"objects": np.array([object()])},
        {"deep": [{"a": (1, object())}]},
        {"stream": np.random.RandomState(0)},
        {"left": SHARED[:4], "right": SHARED[2:]},
    ],
    ids=lambda held: next(iter(held)),
)
def test_no_snapshot_of_other_objects(held: Mapping[str, Any]) -> None:
    assert take_snapshot(HolderEnv(**held)) is None


def test_no_snapshot_of_slots() -> None:
    assert take_snapshot(SlottedEnv()) is None


@pytest.mark.parametrize(
    ("config", "module"),
    [
        (EnvConfig(OPAQUE_ENV), "gymnasium"),
        (EnvConfig("ALE/Pong-v5", frames=FrameConfig("deepmind", 84, grayscale=False, framestack=True)), "ale_py"),
        (EnvConfig("ALE/Pong-v5"), "ale_py"),
        (EnvConfig("HalfCheetah-v5", continuous_actions="clipped"), "mujoco"),
        (EnvConfig("LunarLanderContinuous-v3", continuous_actions="clipped"), "Box2D"),
    ],
)
def test_no_snapshot_of_an_engine(config: EnvConfig, module: str) -> None:
    pytest.importorskip(module)
    env = make_vector_env(config, 2)
    env.reset(seed=0)
    assert take_snapshot(env) is None
    env.close()


def test_no_snapshot_of_large_data(monkeypatch: pytest.MonkeyPatch) -> None:
    prices, moves = HolderEnv(held=[np.zeros(3), np.zeros(4)]), HolderEnv(held=[[index] for index in range(10)])
    assert take_snapshot(prices) is not None
    assert take_snapshot(moves) is not None
    monkeypatch.setattr("rlexp.envs.snapshots.MOST_ARRAY_BYTES", 50)
    assert take_snapshot(prices) is None
    assert take_snapshot(moves) is not None
    monkeypatch.setattr("rlexp.envs.snapshots.MOST_OBJECTS", 11)
    assert take_snapshot(moves) is None


@pytest.mark.parametrize(
    "other",
    [
        HolderEnv(held=1, more=2),
        HolderEnv(held=1, rule=json.dumps),
        HolderEnv(held=1),
        gym.make("CartPole-v1"),
    ],
    ids=["more", "another rule", "less", "another class"],
)
def test_snapshot_of_another_env_changes_nothing(other: Any) -> None:
    snapshot = stored(take_snapshot(HolderEnv(held=5, rule=sorted_later)))
    before = dict(vars(other))
    assert not restore_snapshot(other, snapshot)
    assert vars(other) == before


def test_snapshot_refuses_arrays_of_objects() -> None:
    snapshot = stored(take_snapshot(HolderEnv(held=np.arange(2))))
    ((_, told),) = [pair for pair in snapshot["attributes"] if pair[0] == "held"]
    told["dtype"] = "|O"
    assert not restore_snapshot(HolderEnv(held=np.arange(2)), snapshot)
