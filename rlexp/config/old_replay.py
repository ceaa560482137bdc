"""Replay as RLlib once chose it: by the class of the buffer and of the optimizer."""

from __future__ import annotations

from rlexp.config.becoming import becomes
from rlexp.config.nodes import shown
from rlexp.config.translation import Translation

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


_OPTIMIZERS = {
    "AsyncReplayOptimizer": "APEX",
    "AsyncSamplesOptimizer": "APEX",
    "ApexOptimizer": "APEX",
    "SyncReplayOptimizer": "DQN",
    "LocalSyncReplayOptimizer": "DQN",
}


def replay_buffer_type(translation: Translation) -> None:
    """``replay_buffer_config.type`` is ``prioritized_replay``."""
    node = translation.take("config.replay_buffer_config.type")
    if node is None:
        return
    kind = str(node.value).rpartition(".")[2]
    if kind not in _BUFFERS:
        translation.problem(node, f"config.replay_buffer_config.type: rlexp does not support {shown(node.value)}")
        return
    becomes(translation, node, f"replay_buffer_config.type: {kind}", "prioritized_replay", _BUFFERS[kind])


def optimizer_class(translation: Translation) -> None:
    """``optimizer_class`` must be the agent's own."""
    node = translation.take("config.optimizer_class")
    if node is None:
        return
    agent = _OPTIMIZERS.get(str(node.value))
    if agent is None:
        translation.problem(node, f"config.optimizer_class: rlexp does not support {shown(node.value)}")
    elif agent != translation.run:
        message = f"config.optimizer_class: {node.value} is the optimizer of {agent}, and this is {translation.run}"
        translation.problem(node, message, f"write run: {agent}, or leave optimizer_class out")
    else:
        translation.notice(node, f"config.optimizer_class has no effect here: {agent} implies it")
