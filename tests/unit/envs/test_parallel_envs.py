"""Envs of several agents as rows of a vector env: who acts when, what is reported, and what is refused."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlexp.config.keys.env_ids import RLLIB_ENVS, is_known, package_of, pettingzoo_name, why_unknown
from rlexp.config.keys.user_code import UserClass
from rlexp.envs import registry
from rlexp.envs.action_masks import MaskedSpace, mask_reader_of_env, random_actions
from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.envs.env_check import EnvCheck, Limit
from rlexp.envs.make import make_env, make_filmed_env, make_own_env, make_vector_env, rows_per_env, spaces_of
from rlexp.envs.native_vectors import AGENT_RETURNS, INFOS, RESTING
from rlexp.envs.registry import EnvConfig, FrameConfig
from rlexp.errors import EnvError, UsageError
from tests.lab.parallel import LIVES, MASKED_RELAY, RELAY, Relay

WHERE = "tests.lab.parallel"
CART_POLES = EnvConfig(RLLIB_ENVS["MultiAgentCartPole"], {"config": {"num_agents": 3}})


def steps_of(config: EnvConfig, num_copies: int, num_steps: int) -> list[tuple[Any, ...]]:
    """Return what a vector env returns in so many steps of action 0, after its reset with seed 3."""
    vector = make_vector_env(config, num_copies)
    obs, infos = vector.reset(seed=3)
    zeros = np.zeros(vector.num_envs, np.float64)
    results: list[tuple[Any, ...]] = [(obs, zeros, zeros > 0, zeros > 0, infos)]
    results += [vector.step(np.zeros(vector.num_envs, np.int64)) for _ in range(num_steps)]
    vector.close()
    return results


@pytest.mark.parametrize("keeps_agents", [False, True])
def test_each_agent_is_a_row_that_rests_while_it_is_away(keeps_agents: bool) -> None:
    lives = {**LIVES, "c": (2 - 2 * keeps_agents, 5, "both")}
    results = steps_of(EnvConfig(RELAY, {"lives": lives, "keeps_agents": keeps_agents}), 2, 7)
    obs, rewards, terminated, truncated = (np.stack([step[part] for step in results]) for part in range(4))
    resting = np.stack([step[4][RESTING] for step in results])
    first = [False, False, False, True, True, True, False, False]
    assert resting[:, 0].tolist() == first  # a ends with its third step, and the sixth resets all
    assert resting[:, 1].tolist() == [False] * 5 + [True, False, False]
    assert resting[:, 2].tolist() == ([False] * 5 if keeps_agents else [True] * 2 + [False] * 3) + [True] + (
        [False] * 2 if keeps_agents else [True] * 2
    )
    assert rewards[:, 0].tolist() == [0, 1, 1, 1, 0, 0, 0, 1]
    assert rewards[:, 1].tolist() == [0, 10, 10, 10, 10, 10, 0, 10]
    assert np.argwhere(terminated).tolist() == [[3, 0], [3, 3], [5, 2], [5, 5]]
    assert np.argwhere(truncated).tolist() == [[5, 1], [5, 2], [5, 4], [5, 5]]
    assert obs[:, 1].tolist() == [*([1, step, 3000] for step in range(6)), [1, 0, 3001], [1, 1, 3001]]
    assert obs[3:6, 0].tolist() == [[0, 3, 3000]] * 3  # a's last observation, for as long as it rests
    assert (obs[:, 3:, 2] == np.where(obs[:, 3:, 2] == 0, 0, obs[:, :3, 2] + 1000)).all()  # each copy has its own seed


def test_an_episode_is_that_of_all_agents_and_reported_once() -> None:
    results = steps_of(EnvConfig(RELAY), 2, 7)
    over = np.stack([step[4][GAME_OVER] for step in results])
    assert np.argwhere(over).tolist() == [[5, 0], [5, 3]]
    infos = results[5][4]
    assert infos[GAME_SCORE].tolist() == [353.0, 0, 0, 353.0, 0, 0]
    assert infos[GAME_STEPS].tolist() == [5, 0, 0, 5, 0, 0]
    assert infos[AGENT_RETURNS].tolist() == [[3.0, 50.0, 300.0]] * 2
    assert np.isnan(results[1][4][AGENT_RETURNS][:, 2]).all()  # c has not come yet
    assert infos[INFOS] == [{}, {"number": 1}, {"number": 2}] * 2  # a is gone


def test_a_horizon_cuts_all_agents() -> None:
    results = steps_of(EnvConfig(RELAY, horizon=2), 1, 3)
    assert results[2][3].tolist() == [True, True, False]  # c would come now
    assert results[2][4][GAME_SCORE].tolist() == [22.0, 0, 0]
    assert not results[3][4][RESTING][:2].any()


@pytest.mark.parametrize("place", ["observation", "info"])
def test_masks_of_agents_are_obeyed(place: str) -> None:
    config = EnvConfig(MASKED_RELAY, {"place": place}, action_mask="auto")
    vector = make_vector_env(config, 2)
    space = vector.single_observation_space
    assert isinstance(space, MaskedSpace)
    rows = vector.reset(seed=0)[0]
    for _ in range(30):
        rows = vector.step(random_actions(vector.single_action_space, space.choices, space.allowed(rows)))[0]
    env = make_env(config)
    check = EnvCheck(MASKED_RELAY, env, masks=mask_reader_of_env(env, config))
    assert list(check.doubts(Limit(30, 9, 5.0))) == []


def test_images_are_scaled_and_continuous_actions_numbered_for_each_agent() -> None:
    frames = FrameConfig("rllib", 6, grayscale=True, framestack=False)
    config = EnvConfig(f"{WHERE}:Images", frames=frames, discretize_actions=5)
    vector = make_vector_env(config, 1)
    assert vector.single_observation_space.shape == (6, 6, 1)
    assert vector.single_action_space == Discrete(5)
    vector.reset(seed=0)
    obs = vector.step(np.array([0, 4, 2]))[0]
    assert obs[:2, 0, 0, 0].tolist() == [1, 11]
    sent: Mapping[str, Any] = vector.unwrapped.copies[0].actions  # type: ignore[attr-defined]
    assert {agent: action.tolist() for agent, action in sent.items()} == {"a": [-2.0], "b": [2.0]}
    assert spaces_of(config) == (Box(0, 255, (6, 6, 1), np.uint8), Discrete(5))


def test_a_check_plays_each_agent_and_a_seed_repeats_its_steps() -> None:
    check = EnvCheck(CART_POLES.env, make_env(CART_POLES))
    assert list(check.doubts(Limit(300, 10, 5.0, is_repeated=True))) == []
    env = make_env(EnvConfig(RELAY))
    shown = [env.reset(seed=0)[0][0], *(env.reset()[0][0] for _ in range(3))]
    assert shown == [0, 1, 0, 1]


def test_a_policy_plays_the_env_itself_and_films_show_it() -> None:
    config = EnvConfig(RELAY)
    assert isinstance(make_own_env(config), Relay)
    assert make_own_env(EnvConfig(f"{WHERE}:parallel_env"), "rgb_array").render_mode == "rgb_array"
    assert rows_per_env(config) == 3
    assert rows_per_env(EnvConfig("CartPole-v1")) == 1
    vector = make_filmed_env(config)
    pictures: Any = vector.render()
    assert vector.metadata["render_fps"] == 7
    assert pictures[0].shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no agents", "has no possible_agents, and each agent needs a row"),
        ("only observations", "reset returned dict, not (observations, infos), two dicts by agent"),
        ("nobody", "reset returned no observation"),
        ("leaves", "step returned nothing for b, whose episode has not ended"),
        ("stranger", "step has the agent x, which is not one of possible_agents (a, b, c)"),
        ("shape", "step returned for b an observation of shape (2,) and dtype float32, but its observation_space"),
        ("reward", "step returned for b a reward of str, not a number"),
        ("raises", "ValueError: the relay stumbles"),
        ("four", "step returned tuple of 4 items, not (observations, rewards, terminations"),
    ],
)
def test_an_env_that_breaks_a_rule_is_named_with_the_rule(fault: str, message: str) -> None:
    with pytest.raises((EnvError, UsageError)) as caught:
        steps_of(EnvConfig(f"{WHERE}:Wrong", {"fault": fault}), 1, 1)
    assert message in caught.value.message
    assert caught.value.hint


def test_unequal_spaces_and_wrappers_of_one_agent_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_vector_env(EnvConfig(f"{WHERE}:Unequal"), 1)
    first = Box(-1.0, 1e6, (3,), np.float32)
    assert f"the observation space of a is {first}, but b has" in caught.value.message
    with pytest.raises(UsageError, match="env_wrappers and custom_preprocessor change envs of one agent"):
        make_env(EnvConfig(RELAY, wrappers=(UserClass("gymnasium.wrappers:TimeAwareObservation", {}),)))


class AECEnv:
    """Stands for PettingZoo's class of envs whose agents act in turn."""

    __module__ = "pettingzoo.utils.env"


class MultiAgentEnv:
    """Stands for RLlib's class."""

    __module__ = "ray.rllib.env.multi_agent_env"


@pytest.mark.parametrize(
    ("base", "message"),
    [(AECEnv, "is an AECEnv whose agents act in turn"), (MultiAgentEnv, "is a MultiAgentEnv of RLlib")],
)
def test_other_kinds_of_several_agents_are_refused(base: type, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("crowds")
    module.Crowd = type("Crowd", (base,), {})  # type: ignore[attr-defined]
    module.env = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "crowds", module)
    with pytest.raises(UsageError, match=message):
        make_env(EnvConfig("crowds:Crowd"))
    with pytest.raises(UsageError, match="whose agents act in turn"):
        make_env(EnvConfig("crowds:env"))


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("pettingzoo:butterfly.pistonball_v6", ("pettingzoo.butterfly", "pistonball_v6")),
        ("pettingzoo.butterfly.pistonball_v6:parallel_env", ("pettingzoo.butterfly", "pistonball_v6")),
        ("pettingzoo.butterfly.pistonball_v6", ("pettingzoo.butterfly", "pistonball_v6")),
        ("pettingzoo:mpe.simple_spread_v3", ("mpe2", "simple_spread_v3")),
        ("pettingzoo:pistonball_v6", (None, "pistonball_v6")),
        ("pettingzoo.classic.chess_v6:raw_env", None),
        ("CartPole-v1", None),
    ],
)
def test_names_of_pettingzoo(env: str, name: tuple[str | None, str] | None) -> None:
    assert pettingzoo_name(env) == name
    package = package_of(env)
    if name is not None:
        assert is_known(env)
        assert package is not None
        assert package.requirement == "rlexp[pettingzoo]"
    assert why_unknown("sisl/pursuit_v5")[1] == "write env: pettingzoo:sisl.pursuit_v5"


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package like PettingZoo, with an env of either kind and one that needs a missing package."""
    texts = {
        "relay_v1": "from tests.lab.parallel import parallel_env\n",
        "chess_v6": "env = raw_env = None\n",
        "needy_v0": "import a_missing_package\n",
    }
    folder = tmp_path / "zoo" / "butterfly"
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setattr(registry, "PETTINGZOO_FAMILIES", ("zoo.butterfly",))
    monkeypatch.setattr(registry, "pettingzoo_name", lambda env: _named(env) if env.startswith("zoo:") else None)


def _named(env: str) -> tuple[str | None, str]:
    family, dot, name = env.removeprefix("zoo:").rpartition(".")
    return (f"zoo.{family}" if dot else None), name


@pytest.mark.usefixtures("zoo")
def test_an_env_of_a_package_is_found_by_its_name() -> None:
    for env in ("zoo:butterfly.relay_v1", "zoo:relay_v1"):
        assert isinstance(make_own_env(EnvConfig(env)), Relay)


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("zoo:butterfly.rely_v1", "PettingZoo has no rely_v1 in zoo.butterfly", "is pettingzoo:zoo.butterfly.relay_v1"),
        ("zoo:butterfly.xyz", "has no xyz in zoo.butterfly", "it has chess_v6, needy_v0, relay_v1"),
        ("zoo:chess_v6", "whose agents act in turn (it has no parallel_env)", "such as its parallel_env"),
        ("zoo:needy_v0", "No module named 'a_missing_package'", "pip install 'rlexp[pettingzoo]'"),
        ("zoo:nowhere.xyz", "has no xyz in zoo.nowhere", "its packages are zoo.butterfly"),
    ],
)
def test_what_a_package_lacks_is_said(env: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_env(EnvConfig(env))
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.skipif(importlib.util.find_spec("pettingzoo") is not None, reason="PettingZoo is installed")
def test_missing_pettingzoo_has_an_install_hint() -> None:
    with pytest.raises(UsageError, match="pettingzoo is not installed") as caught:
        make_env(EnvConfig("pettingzoo:butterfly.pistonball_v6"))
    assert caught.value.hint == "pip install 'rlexp[pettingzoo]'"
