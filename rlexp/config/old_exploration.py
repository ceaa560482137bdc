"""Exploration as RLlib 0.8 to 2 describes it: ``exploration_config`` and ``epsilon``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.becoming import said
from rlexp.config.translation import Translation

_EXPLORATIONS: Mapping[str, Mapping[str, Any]] = {
    "EpsilonGreedy": {"per_worker_exploration": False},
    "PerWorkerEpsilonGreedy": {"per_worker_exploration": True},
    "SoftQ": {"soft_q": True},
    "Random": {"exploration_initial_eps": 1.0, "exploration_final_eps": 1.0, "per_worker_exploration": False},
}


def exploration_type(translation: Translation) -> None:
    """``exploration_config.type`` is a choice between flat keys; those of other agents are refused."""
    node = translation.take("config.exploration_config.type")
    if node is None:
        return
    kind = str(node.value).rpartition(".")[2]
    keys = _EXPLORATIONS.get(kind)
    if keys is None:
        hint = "noisy: true explores by noise in the network too" if kind == "ParameterNoise" else None
        translation.problem(node, f"config.exploration_config.type: rlexp does not support {kind}", hint)
        return
    translation.notice(node, f"config.exploration_config.type: {kind} is {said(keys)} now")
    for key, value in keys.items():
        translation.put_unless_given(f"config.{key}", value, node)


def epsilon(translation: Translation) -> None:
    """RLlib 2's ``epsilon``: a number, or [[0, first], [timestep, last]]."""
    node = translation.take("config.epsilon")
    if node is None:
        return
    points = node.plain() if isinstance(node.value, tuple) else [[0, node.plain()], [0, node.plain()]]
    if len(points) != 2 or not all(_is_point(point) for point in points):
        translation.problem(node, "config.epsilon must be a number or [[0, first], [timestep, last]]")
        return
    (warmup, first), (end, last) = points
    keys = {"exploration_initial_eps": first, "exploration_final_eps": last, "epsilon_timesteps": end - warmup}
    for key, value in (keys | ({"exploration_warmup_timesteps": warmup} if warmup else {})).items():
        translation.put_unless_given(f"config.{key}", value, node)
    translation.notice(node, f"config.epsilon is {said(keys)} now")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(isinstance(number, int | float) for number in point)
