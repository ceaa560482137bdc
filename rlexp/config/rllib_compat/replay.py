"""Replay in RLlib's spelling: by the class of the buffer and of the optimizer."""

from __future__ import annotations

from rlexp.config.rllib_compat.replaced_keys import becomes
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import written

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
    becomes(translation, node, f"replay_buffer_config.type: {kind}", "prioritized_replay", _BUFFERS[kind])


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
