"""RLlib's ways to explore as flat keys that explore in the same way; classes without a counterpart are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rlexp.config.keys.key_table import key_table
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, shown, written, written_keys
from rlexp.text import is_known

_GROUP: Final = "config.exploration_config"
_TYPE: Final = f"{_GROUP}.type"
_RANDOM_STEPS: Final = "exploration_warmup_timesteps"
_FIRST_TD3: Final = "config.use_gaussian_noise"
_OU_SCALE: Final = ("config", "exploration_ou_noise_scale")

_OF_Q_LEARNERS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "EpsilonGreedy": {"per_worker_exploration": False},
        "PerWorkerEpsilonGreedy": {"per_worker_exploration": True},
        "SoftQ": {"soft_q": True},
        # It samples from the action distribution, whose logits were the Q-values in RLlib.
        "StochasticSampling": {"soft_q": True, "softmax_temp": 1.0},
        # random for so many steps, then nearly greedy: RLlib's ParameterNoise has this for epsilon
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
_OF_NOISE: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        f"{prefix}{kind}Noise": {"exploration_noise_type": word, "per_worker_exploration": bool(prefix)}
        for prefix in ("", "PerWorker")
        for kind, word in (("OrnsteinUhlenbeck", "ou"), ("Gaussian", "gaussian"))
    }
)
_OF_POLICIES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"StochasticSampling": {}})

_CONTINUOUS: Final = "it adds noise to continuous actions, and belongs to DDPG and TD3"
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
    """Read ``exploration_config.type`` as flat keys; refuse types of other agents, with their options.

    A type is the name of a class, or its path: ``ray.rllib.utils.exploration.epsilon_greedy.EpsilonGreedy``.
    """
    node = translation.take(_TYPE)
    if node is None:
        return
    if not isinstance(node.value, str):
        translation.problem(node, f"{_TYPE} must be the name of a class, got {shown(node.plain())}")
        return
    kind = node.value.rpartition(".")[2]
    known = _OF_POLICIES
    if _explores_by_values(translation):
        known = _OF_Q_LEARNERS
    elif _adds_noise(translation):
        known = _OF_NOISE
    if kind not in known:
        reason = f": {_REASONS[kind]}" if kind in _REASONS else ""
        which = f" with {translation.run}" if kind in _OF_Q_LEARNERS else ""
        message = f"{_TYPE}: rlexp does not support {kind}{which}{reason}"
        translation.problem(node, message, f"use {', '.join(known)}")
        translation.take(_GROUP)
        return
    if known is _OF_POLICIES:
        text = f"{_TYPE}: {kind} has no effect here: {translation.run} always explores so"
        translation.notice(node, text, is_minor=True)
        return
    _use_flat_keys(translation, node, f"{_TYPE}: {kind}", known[kind])


def _explores_by_values(translation: Translation) -> bool:
    """Return whether the agent explores by action values, as the DQN family does."""
    return ("config", "soft_q") in key_table(translation.run)


def _adds_noise(translation: Translation) -> bool:
    """Return whether the agent adds noise to its actions, as DDPG does."""
    return ("config", "exploration_noise_type") in key_table(translation.run)


def noise_schedule(translation: Translation) -> None:
    """Read the schedule of noise up to RLlib 0.8.2: a fraction of a number of steps, and whether it changes at all."""
    if not _adds_noise(translation):
        return
    _first_td3(translation)
    sigma = translation.find("config.exploration_gaussian_sigma")
    is_td3 = bool(translation.value("config.smooth_target_policy"))  # as RLlib 0.6 spelled it
    noise_key = "config.exploration_noise_type"
    if sigma is not None and is_td3 and translation.put_unless_given(noise_key, "gaussian", sigma):
        translation.notice(sigma, "beside smooth_target_policy the noise is exploration_noise_type: gaussian")
    fraction, anneals = (translation.take(f"config.exploration_{key}") for key in ("fraction", "should_anneal"))
    if anneals is not None and anneals.value is False:
        translation.take("config.exploration_final_scale")
        translation.put("config.exploration_final_scale", 1.0, anneals)
        translation.notice(anneals, "config.exploration_should_anneal: false is exploration_final_scale: 1.0 now")
    elif (
        anneals is not None
        and anneals.value
        and translation.put_unless_given("config.exploration_final_scale", 0.02, anneals)
    ):
        translation.notice(anneals, "config.exploration_should_anneal is exploration_final_scale: 0.02 now")
    if fraction is not None and fraction.value is not None:
        total = translation.value("config.schedule_max_timesteps") or 100_000
        if not is_known(fraction.value):
            message = f"config.exploration_fraction must be a number, got {shown(fraction.plain())}"
            translation.problem(fraction, message)
        elif is_known(total) and is_known(fraction.value * total):
            _use_flat_keys(
                translation,
                fraction,
                "config.exploration_fraction",
                {"exploration_scale_timesteps": int(fraction.value * total)},
            )


def _first_td3(translation: Translation) -> None:
    """Read ``use_gaussian_noise``, with which RLlib first had TD3: its noise on actions was a part of their range."""
    node, scale = translation.take_flag(_FIRST_TD3), translation.value("config.exploration_ou_noise_scale")
    if node is None:
        return
    part = scale if isinstance(scale, int | float) else key_table(translation.run)[_OU_SCALE].default
    keys = {"smooth_target_policy": True, "exploration_noise_type": "gaussian", "exploration_gaussian_sigma": 2 * part}
    _use_flat_keys(translation, node, _FIRST_TD3, keys)


def _use_flat_keys(translation: Translation, node: Node, old: str, keys: Mapping[str, Any]) -> None:
    """Set the keys for which an old one stands, unless the file gives them."""
    for key, value in keys.items():
        translation.put_over(f"config.{key}", value, node)
    made = {key: value for key, value in keys.items() if translation.value(f"config.{key}") == value}
    effect = (
        f"is {written_keys(made)} now" if made else f"has no effect beside {', '.join(f'config.{key}' for key in keys)}"
    )
    translation.notice(node, f"{old} {effect}")
    random_steps = translation.find(f"config.{_RANDOM_STEPS}")
    if keys.get("soft_q") and random_steps is not None and random_steps.value:
        key, _, kind = old.partition(": ")
        message = f"{key}: rlexp does not support random steps before {kind}"
        hint = "leave random_timesteps and exploration_warmup_timesteps out, or use EpsilonGreedy"
        translation.problem(random_steps, message, hint)


def epsilon(translation: Translation) -> None:
    """Read RLlib 2's ``epsilon``: a number, or [[0, first], [timestep, last]]; IMPALA has it for its RMSProp."""
    is_key = ("config", "epsilon") in key_table(translation.run)
    node = None if is_key else translation.take("config.epsilon")
    if node is None:
        return
    points = node.plain() if isinstance(node.value, tuple) else [[0, node.plain()], [0, node.plain()]]
    if len(points) != 2 or not all(_is_point(point) for point in points):
        message = f"config.epsilon must be a number or [[0, first], [timestep, last]], got {written(node.plain())}"
        translation.problem(node, message, "write epsilon: [[0, 1.0], [10000, 0.05]]")
        return
    (warmup, first), (end, last) = points
    keys = {"exploration_initial_eps": first, "exploration_final_eps": last, "epsilon_timesteps": end - warmup}
    _use_flat_keys(translation, node, "config.epsilon", keys | ({_RANDOM_STEPS: warmup} if warmup else {}))


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(isinstance(number, int | float) for number in point)
