"""Ape-X: DQN's policy and learner, with many workers, sharded replay and a learner that run side by side."""

from __future__ import annotations

from rlexp.agents.apex.data_path import ApexReplayAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.config.keys.apex import ApexConfig


class ApexAgent(ApexReplayAgent[ApexConfig], DQNAgent[ApexConfig]):
    """Distributed prioritized experience replay (Horgan et al. 2018)."""
