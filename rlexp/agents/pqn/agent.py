"""PQN: workers sample a train batch with the newest weights, epsilon-greedily, then the learner learns on it."""

from __future__ import annotations

from functools import cached_property

import torch

from rlexp.agents.pqn.learner import PQNLearner, PQNLearnerConfig
from rlexp.agents.pqn.players import PQNPolicies, PQNWorkerParts
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.device import learner_device
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.pqn import PQNConfig
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.schedules import PiecewiseSchedule, derive_seed


class PQNAgent(SyncSamplesAgent[PQNConfig]):
    """PQN (Gallici et al. 2024) with several workers that sample at the same time."""

    POLICIES = PQNPolicies
    policies: PQNPolicies

    def make_learner(self) -> PQNLearner:
        config = self.config
        learner_config = PQNLearnerConfig(
            lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
            adam_epsilon=config.adam_epsilon,
            grad_norm_clipping=config.grad_norm_clipping,
            num_sgd_iter=config.num_sgd_iter,
            sgd_minibatch_size=config.sgd_minibatch_size,
            device=learner_device(config.num_gpus),
        )
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return PQNLearner(self.policies.network, learner_config, derive_seed(self.seed, "learner"))

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self._players.parts(worker_index, seed, num_threads)

    def stats(self) -> Figures:
        """Return ε at the steps sampled so far."""
        return self._players.figures(self.optimizer.counters.num_steps_sampled)

    @cached_property
    def _players(self) -> PQNWorkerParts:
        return PQNWorkerParts(self.config, self.policies.network)
