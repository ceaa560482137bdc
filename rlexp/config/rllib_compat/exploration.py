"""RLlib's classes of exploration, as the flat keys that explore alike here; those that no agent here can mean."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rlexp.config.keys.key_table import key_table
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, written, written_keys

_GROUP: Final = "config.exploration_config"
_TYPE: Final = f"{_GROUP}.type"
_RANDOM_STEPS: Final = "exploration_warmup_timesteps"

_OF_Q_LEARNERS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "EpsilonGreedy": {"per_worker_exploration": False},
        "PerWorkerEpsilonGreedy": {"per_worker_exploration": True},
        "SoftQ": {"soft_q": True},
        # It samples from the action distribution, whose logits were the Q-values in RLlib.
        "StochasticSampling": {"soft_q": True, "softmax_temp": 1.0},
        # Random for so many steps, then nearly greedy: what RLlib's ParameterNoise has for epsilon.
        "ParameterNoise": {
            "parameter_noise": True,
            "per_worker_exploration": False,
            "exploration_final_eps": 0.01,
            "epsilon_timesteps": 0,
            _RANDOM_STEPS: 10_000,
        },
        "Random": {"exploration_initial_eps": 1.0, "exploration_final_eps": 1.0, "per_worker_exploration": False},
    }
)
_OF_PPO: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"StochasticSampling": {}})

_CONTINUOUS: Final = "it adds noise to continuous actions, and belongs to DDPG, TD3 and SAC"
_CURIOUS: Final = "it adds rewards that models of its own compute; an env wrapper can add rewards"
_SLATES: Final = "it chooses slates, lists of items, and belongs to SlateQ"
_BANDITS: Final = "it belongs to RLlib's bandits"
_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "GaussianNoise": _CONTINUOUS,
        "OrnsteinUhlenbeckNoise": _CONTINUOUS,
        "PerWorkerGaussianNoise": _CONTINUOUS,
        "PerWorkerOrnsteinUhlenbeckNoise": _CONTINUOUS,
        "Curiosity": _CURIOUS,
        "RE3": _CURIOUS,
        "RND": _CURIOUS,
        "SlateEpsilonGreedy": _SLATES,
        "SlateSoftQ": _SLATES,
        "ThompsonSampling": _BANDITS,
        "UpperConfidenceBound": _BANDITS,
    }
)
"""Why no agent here explores by one of RLlib's other classes."""


def exploration_type(translation: Translation) -> None:
    """``exploration_config.type`` stands for flat keys; the types of other agents are refused, with their options.

    A type is the name of a class, or its path: ``ray.rllib.utils.exploration.epsilon_greedy.EpsilonGreedy``.
    """
    node = translation.take(_TYPE)
    if node is None:
        return
    kind = str(node.value).rpartition(".")[2]
    known = _OF_Q_LEARNERS if _explores_by_values(translation) else _OF_PPO
    if kind not in known:
        reason = f": {_REASONS[kind]}" if kind in _REASONS else ""
        which = " with PPO" if kind in _OF_Q_LEARNERS else ""
        message = f"{_TYPE}: rlexp does not support {kind}{which}{reason}"
        translation.problem(node, message, f"use {', '.join(known)}")
        translation.take(_GROUP)
        return
    if known is _OF_PPO:
        translation.notice(node, f"{_TYPE}: {kind} has no effect here: so PPO always explores", is_minor=True)
        return
    _use_flat_keys(translation, node, kind, known[kind])


def _explores_by_values(translation: Translation) -> bool:
    """Return whether the agent explores by the values of actions, as the family of DQN does."""
    return ("config", "soft_q") in key_table(translation.run)


def _use_flat_keys(translation: Translation, node: Node, kind: str, keys: Mapping[str, Any]) -> None:
    """Set the keys that a type stands for, but for those that the file gives."""
    for key, value in keys.items():
        translation.put_unless_given(f"config.{key}", value, node)
    made = {key: value for key, value in keys.items() if translation.value(f"config.{key}") == value}
    effect = (
        f"is {written_keys(made)} now" if made else f"has no effect beside {', '.join(f'config.{key}' for key in keys)}"
    )
    translation.notice(node, f"{_TYPE}: {kind} {effect}")
    random_steps = translation.find(f"config.{_RANDOM_STEPS}")
    if keys.get("soft_q") and random_steps is not None and random_steps.value:
        message = f"{_TYPE}: rlexp does not support random steps before {kind}"
        hint = "leave random_timesteps and exploration_warmup_timesteps out, or use EpsilonGreedy"
        translation.problem(random_steps, message, hint)


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
    for key, value in (keys | ({_RANDOM_STEPS: warmup} if warmup else {})).items():
        translation.put_unless_given(f"config.{key}", value, node)
    translation.notice(node, f"config.epsilon is {written_keys(keys)} now")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(isinstance(number, int | float) for number in point)
