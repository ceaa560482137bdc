"""What agents with an actor-critic network have in common: who plays, and what becomes of the steps."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from rlexp.agents.actor_critic.policy import ActorCriticPolicies, ActorCriticPolicy
from rlexp.agents.agent import Agent
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.actor_critic_keys import ActorCriticKeys
from rlexp.rollout.folds import Advantages
from rlexp.schedules import derive_seed

ActorCriticKeysT = TypeVar("ActorCriticKeysT", bound=ActorCriticKeys)


class ActorCriticAgent(Agent[ActorCriticKeysT]):
    """An agent whose workers draw actions from a policy, and compute advantages by a value function."""

    POLICIES = ActorCriticPolicies
    policies: ActorCriticPolicies

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        config = self.config
        drawing_seed = derive_seed(seed, "worker", worker_index, "exploration") if config.explore else None
        return WorkerParts(
            make_policy=partial(
                ActorCriticPolicy, self.policies.network, self.policies.actions, drawing_seed, num_threads
            ),
            fold=Advantages(config.gamma, config.lambda_, config.use_gae, config.use_critic),
        )
