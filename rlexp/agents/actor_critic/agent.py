"""What agents with an actor-critic network have in common: who plays, and what becomes of the steps."""

from __future__ import annotations

from typing import TypeVar

from rlexp.agents.actor_critic.policy import ActorCriticPolicies
from rlexp.agents.agent import Agent
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.actor_critic_keys import ActorCriticKeys

ActorCriticKeysT = TypeVar("ActorCriticKeysT", bound=ActorCriticKeys)


class ActorCriticAgent(Agent[ActorCriticKeysT]):
    """An agent whose workers draw actions from a policy."""

    POLICIES = ActorCriticPolicies
    policies: ActorCriticPolicies

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self.policies.seat_players().parts(worker_index, seed, num_threads)
