"""Exploration in the spelling of RLlib 0.8 to 2: ``exploration_config`` and ``epsilon``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.rllib_compat.replaced_keys import said
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import written

_EXPLORATIONS: Mapping[str, Mapping[str, Any]] = {
    "EpsilonGreedy": {"per_worker_exploration": False},
    "PerWorkerEpsilonGreedy": {"per_worker_exploration": True},
    "SoftQ": {"soft_q": True},
    # Random for so many steps, then nearly greedy: what RLlib's ParameterNoise has for epsilon.
    "ParameterNoise": {
        "parameter_noise": True,
        "per_worker_exploration": False,
        "exploration_final_eps": 0.01,
        "epsilon_timesteps": 0,
        "exploration_warmup_timesteps": 10_000,
    },
    "Random": {"exploration_initial_eps": 1.0, "exploration_final_eps": 1.0, "per_worker_exploration": False},
}

_KNOWN = f"use {', '.join(_EXPLORATIONS)}"


def exploration_type(translation: Translation) -> None:
    """``exploration_config.type`` stands for flat keys; the types of other agents are refused."""
    node = translation.take("config.exploration_config.type")
    if node is None:
        return
    kind = str(node.value).rpartition(".")[2]
    if kind not in _EXPLORATIONS:
        translation.problem(node, f"config.exploration_config.type: rlexp does not support {kind}", _KNOWN)
        return
    keys = _EXPLORATIONS[kind]
    for key, value in keys.items():
        translation.put_unless_given(f"config.{key}", value, node)
    made = {key: value for key, value in keys.items() if translation.value(f"config.{key}") == value}
    effect = f"is {said(made)} now" if made else f"has no effect beside {', '.join(f'config.{key}' for key in keys)}"
    translation.notice(node, f"config.exploration_config.type: {kind} {effect}")


def epsilon(translation: Translation) -> None:
    """RLlib 2's ``epsilon``: a number, or [[0, first], [timestep, last]]."""
    node = translation.take("config.epsilon")
    if node is None:
        return
    points = node.plain() if isinstance(node.value, tuple) else [[0, node.plain()], [0, node.plain()]]
    if len(points) != 2 or not all(_is_point(point) for point in points):
        message = f"config.epsilon must be a number or [[0, first], [timestep, last]], got {written(node.plain())}"
        translation.problem(node, message, "write epsilon: [[0, 1.0], [10000, 0.05]]")
        return
    (warmup, first), (end, last) = points
    keys = {"exploration_initial_eps": first, "exploration_final_eps": last, "epsilon_timesteps": end - warmup}
    for key, value in (keys | ({"exploration_warmup_timesteps": warmup} if warmup else {})).items():
        translation.put_unless_given(f"config.{key}", value, node)
    translation.notice(node, f"config.epsilon is {said(keys)} now")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(isinstance(number, int | float) for number in point)
