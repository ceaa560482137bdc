"""What agents with an actor-critic network have in common: who plays, and what becomes of the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch

from rlexp.agents.actor_critic.policy import ActorCriticPolicies
from rlexp.agents.agent import Agent
from rlexp.agents.torch.device import learner_device
from rlexp.agents.torch.learner_process import ALONE, LearnerSpec, Shard
from rlexp.agents.torch.learners import LearnerGroup
from rlexp.agents.workers import WorkerParts
from rlexp.cluster.pool.pool import Resources
from rlexp.config.keys.actor_critic_keys import ActorCriticKeys
from rlexp.config.keys.trial import bundles_of
from rlexp.optimizers.sync_samples_optimizer import TrainBatchLearner
from rlexp.policy import Learner

ActorCriticKeysT = TypeVar("ActorCriticKeysT", bound=ActorCriticKeys)


class ActorCriticAgent(Agent[ActorCriticKeysT]):
    """An agent whose workers draw actions from a policy."""

    POLICIES = ActorCriticPolicies
    policies: ActorCriticPolicies

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self.policies.seat_players().parts(worker_index, seed, num_threads)

    def one_learner_or_several(
        self, make: Callable[[str, Shard], Learner], most_updates: Callable[[int], int]
    ) -> TrainBatchLearner:
        """Return a learner, or a group of as many as ``num_learners`` says; set the threads of this process for it.

        ``make`` takes a device and a part, ``most_updates`` the rows of a train batch, as in ``LearnerSpec``.
        """
        config, processes = self.config, self.config.learner_processes
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        if processes is None:
            return cast(TrainBatchLearner, make(learner_device(config.num_gpus), ALONE))
        spec = LearnerSpec(
            make=make,
            most_updates=most_updates,
            num_learners=processes.number,
            num_threads=max(int(processes.cpus), 1),
            num_gpus=processes.gpus,
        )
        resources = Resources(processes.cpus, processes.gpus, bundle=bundles_of(config).of_first_learner)
        return LearnerGroup(self.pool, resources, spec, self.add_event)
