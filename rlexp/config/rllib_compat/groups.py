"""Groups of RLlib that stand for flat keys: the classes of replay and of optimizers, CPUs and GPUs of trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.agents import built_in_base
from rlexp.config.keys.key_table import key_table
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, written

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
    elif agent != built_in_base(translation.run):
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
