"""Which agent ``run:`` means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rlexp.agents.agent import Agent
from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent

AGENTS: Mapping[str, type[Agent[Any]]] = MappingProxyType({"APEX": ApexAgent, "DQN": DQNAgent})
