"""The agents. A new one is a line here, and a file with its keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rlexp.config.keys.apex import ApexExperiment
from rlexp.config.keys.dqn import DQNExperiment
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.ppo import PPOExperiment

AGENTS: Mapping[str, type[Experiment]] = MappingProxyType(
    {
        "DQN": DQNExperiment,
        "APEX": ApexExperiment,
        "PPO": PPOExperiment,
    }
)
"""The models of their experiments."""
