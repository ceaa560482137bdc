"""Groups of RLlib that stand for flat keys: exploration, the classes of replay, CPUs and GPUs of trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.key_table import key_table
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, written, written_keys

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

_BUFFERS = {
    "MultiAgentPrioritizedReplayBuffer": True,
    "PrioritizedReplayBuffer": True,
    "PrioritizedEpisodeReplayBuffer": True,
    "MultiAgentPrioritizedEpisodeReplayBuffer": True,
    "MultiAgentReplayBuffer": False,
    "ReplayBuffer": False,
    "EpisodeReplayBuffer": False,
    "MultiAgentEpisodeReplayBuffer": False,
}
_RECOMMENDED = ("MultiAgentPrioritizedReplayBuffer", "MultiAgentReplayBuffer")
_WITH_FLAG = ("LocalReplayBuffer",)
"""Classes that were uniform or prioritized, depending on ``prioritized_replay``."""
_FLAG_DECIDES = "prioritized_replay decides how replay samples"

_OPTIMIZERS = {
    "AsyncReplayOptimizer": "APEX",
    "AsyncSamplesOptimizer": "APEX",
    "ApexOptimizer": "APEX",
    "SyncReplayOptimizer": "DQN",
    "LocalSyncReplayOptimizer": "DQN",
}


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
    effect = (
        f"is {written_keys(made)} now" if made else f"has no effect beside {', '.join(f'config.{key}' for key in keys)}"
    )
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
    translation.notice(node, f"config.epsilon is {written_keys(keys)} now")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(isinstance(number, int | float) for number in point)


def replay_buffer_type(translation: Translation) -> None:
    """``replay_buffer_config.type`` stands for ``prioritized_replay``."""
    node = translation.take("config.replay_buffer_config.type")
    if node is None:
        return
    kind = str(node.value).rpartition(".")[2]
    if kind in _WITH_FLAG:
        translation.notice(node, f"config.replay_buffer_config.type has no effect here: with {kind}, {_FLAG_DECIDES}")
        return
    if kind not in _BUFFERS:
        message = f"config.replay_buffer_config.type: rlexp does not support {written(node.plain())}"
        translation.problem(node, message, f"use {' or '.join(_RECOMMENDED)}")
        return
    translation.put_instead(
        node, f"config.replay_buffer_config.type: {kind}", "config.prioritized_replay", _BUFFERS[kind]
    )


def optimizer_class(translation: Translation) -> None:
    """``optimizer_class`` must be the agent's own."""
    node = translation.take("config.optimizer_class")
    if node is None:
        return
    agent = _OPTIMIZERS.get(str(node.value))
    if agent is None:
        translation.problem(node, f"config.optimizer_class: rlexp does not support {written(node.plain())}")
    elif agent != translation.run:
        message = f"config.optimizer_class: {node.value} is the optimizer of {agent}, but run is {translation.run}"
        translation.problem(node, message, f"write run: {agent}, or leave optimizer_class out")
    else:
        translation.notice(node, f"config.optimizer_class has no effect here: {agent} has only this one")


def worker_resources(translation: Translation) -> None:
    """``worker_resources`` and ``use_gpu_for_workers`` stand for CPUs and GPUs per worker."""
    resources = translation.take("config.worker_resources")
    for name, amount in (resources.entries() if resources else {}).items():
        translation.put_instead(amount, f"config.worker_resources.{name}", f"config.{name}_per_worker", amount.plain())
    use_gpu = translation.take("config.use_gpu_for_workers")
    if use_gpu is not None:
        translation.put_instead(
            use_gpu, "config.use_gpu_for_workers", "config.num_gpus_per_worker", int(bool(use_gpu.value))
        )


def trial_resources(translation: Translation) -> None:
    """Give the CPUs and GPUs of a trial to its driver and, in equal shares, to its workers."""
    for name in ("resources_per_trial", "trial_resources", "resources"):
        node = translation.take(name)
        if node is None or node.value is None:
            continue
        asked = {key: child.plain() for key, child in node.entries().items() if child.value is not None}
        if not node.entries() or not all(isinstance(amount, int | float) for amount in asked.values()):
            message = f"{name} must be a mapping of numbers: cpu, gpu, extra_cpu, extra_gpu"
            translation.problem(node, message, f"write {name}: {{cpu: 1, extra_cpu: 4}}, or leave it out")
            continue
        for unit in ("cpu", "gpu"):
            _share_out(translation, node, name, unit, asked)


def _share_out(translation: Translation, node: Node, name: str, unit: str, asked: Mapping[str, Any]) -> None:
    total, limit = asked.get(unit), asked.get(f"driver_{unit}_limit")
    extra = asked.get(f"extra_{unit}", 0) if limit is None else (total or 0) - limit
    driver = "num_cpus_for_driver" if unit == "cpu" else "num_gpus"
    if total is not None:
        translation.put_instead(node, f"{name}.{unit}", f"config.{driver}", total if limit is None else limit)
    workers = translation.value("config.num_workers")
    workers = workers if isinstance(workers, int) else key_table(translation.run)["config", "num_workers"].default
    if extra and workers:
        translation.put_instead(node, f"{name}.extra_{unit}", f"config.num_{unit}s_per_worker", extra / workers)
