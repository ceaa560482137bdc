"""Envs of several agents are refused by name, with the reason and what to do instead."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium as gym
import pytest

from rlexp.config.keys.env_ids import ONE_AGENT, why_unknown
from rlexp.envs import EnvConfig, make_env
from rlexp.errors import UsageError


def foreign_class(name: str, module: str, *bases: type) -> type:
    """Return a class of a library that need not be installed."""
    return type(name, bases, {"__module__": module})


def refused(env: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        make_env(EnvConfig(env, {}, None))
    assert caught.value.hint == ONE_AGENT
    return caught.value


@pytest.mark.parametrize(
    "env", ["pettingzoo.butterfly.pistonball_v6:parallel_env", "pettingzoo.classic.chess_v6:raw_env"]
)
def test_module_of_pettingzoo_is_refused_before_it_is_imported(env: str) -> None:
    assert "is an environment of PettingZoo, for several agents" in refused(env).message
    assert not any(name.startswith("pettingzoo.") for name in sys.modules)


@pytest.mark.parametrize("env", ["pistonball_v6", "butterfly/pistonball_v6", "pettingzoo.butterfly.pistonball_v6"])
def test_name_of_pettingzoos_form_is_known_as_such(env: str) -> None:
    message, hint = why_unknown(env)
    assert "PettingZoo" in message
    assert hint == ONE_AGENT


@pytest.mark.parametrize(
    "base",
    [
        foreign_class("AECEnv", "pettingzoo.utils.env"),
        foreign_class("ParallelEnv", "pettingzoo.utils.env"),
        foreign_class("MultiAgentEnv", "ray.rllib.env.multi_agent_env", gym.Env),
    ],
)
def test_class_derived_from_an_env_of_several_agents_is_refused(base: type, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("crowds")
    module.Crowd = type("Crowd", (base,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "crowds", module)
    assert f"is a {base.__name__}, for several agents" in refused("crowds:Crowd").message


def test_class_of_ones_own_with_such_a_name_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.envs import CountingEnv

    module = ModuleType("lonely")
    module.ParallelEnv = type("ParallelEnv", (CountingEnv,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lonely", module)
    make_env(EnvConfig("lonely:ParallelEnv", {}, None)).close()
