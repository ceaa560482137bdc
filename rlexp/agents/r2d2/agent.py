"""R2D2: the agents, which differ from DQN and Ape-X in their policy, their rows and their loss."""

from __future__ import annotations

from typing import TypeVar

from rlexp.agents.apex.data_path import ApexReplayAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.learner import DQNLearner
from rlexp.agents.r2d2.learner import R2D2Learner, R2D2Settings
from rlexp.agents.r2d2.policy import R2D2Policies
from rlexp.config.keys.r2d2 import ApexR2D2Config, R2D2Config
from rlexp.schedules import derive_seed

R2D2ConfigT = TypeVar("R2D2ConfigT", bound=R2D2Config)


class R2D2Agent(DQNAgent[R2D2ConfigT]):
    """R2D2 with one replay shard in the learner's process."""

    POLICIES = R2D2Policies
    policies: R2D2Policies

    def make_learner(self) -> DQNLearner:
        config, policies = self.config, self.policies
        settings = R2D2Settings(policies.sequences, config.h_function_epsilon if config.use_h_function else None)
        seed = derive_seed(self.seed, "learner")
        return R2D2Learner(policies.network, self.learner_config(), settings, seed, self.add_event)


class ApexR2D2Agent(ApexReplayAgent[ApexR2D2Config], R2D2Agent[ApexR2D2Config]):
    """R2D2 with many workers and sharded replay, as in Kapturowski et al. 2019."""
