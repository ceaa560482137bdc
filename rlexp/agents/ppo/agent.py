"""PPO: workers sample a train batch with the newest weights, then the learner learns on it."""

from __future__ import annotations

import math
from functools import partial

import torch

from rlexp.agents.agent import Agent
from rlexp.agents.ppo.learner import PPOLearner, PPOLearnerConfig
from rlexp.agents.ppo.policy import PPOPolicies, PPOPolicy
from rlexp.agents.torch.device import learner_device
from rlexp.agents.torch.learners import LearnerGroup, LearnerSpec
from rlexp.agents.workers import WorkerLinks, WorkerParts
from rlexp.cluster.pool.pool import Resources
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.trial import bundles_of
from rlexp.optimizers.policy_optimizer import Figures, PolicyOptimizer
from rlexp.optimizers.sync_samples_optimizer import SyncSamplesOptimizer, TrainBatchConfig
from rlexp.policy import Learner
from rlexp.rollout.folds import Advantages
from rlexp.rollout.source import SampleSource
from rlexp.schedules import PiecewiseSchedule, derive_seed

CALLS_PER_WORKER = 2
"""Sample calls in flight per worker, at least: the second one hides the time of the messages."""
TARGETS_FAR_ABOVE_CLIP = 10.0
"""How many times ``vf_clip_param`` the value targets are on average, for a notice."""


class PPOAgent(Agent[PPOConfig]):
    """PPO (Schulman et al. 2017) with several workers that sample at the same time."""

    POLICIES = PPOPolicies
    policies: PPOPolicies
    optimizer: SyncSamplesOptimizer
    _has_noticed_targets = False

    def make_learner(self) -> Learner:
        config, processes, own = self.config, self.config.learner_processes, learner_config(self.config)
        seed = derive_seed(self.seed, "learner")
        make = partial(PPOLearner, self.policies.network, self.policies.actions, own, seed)
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        if processes is None:
            return make(learner_device(config.num_gpus))
        spec = LearnerSpec(
            make=make,
            most_updates=own.most_updates,
            num_learners=processes.number,
            num_threads=max(int(processes.cpus), 1),
            num_gpus=processes.gpus,
        )
        bundle = bundles_of(config).of_first_learner
        return LearnerGroup(self.pool, Resources(processes.cpus, processes.gpus, bundle=bundle), spec)

    def make_source(self) -> SampleSource:
        return self.place_workers(WorkerLinks(self._calls_per_worker(), max_weight_sync_delay=0))

    def _calls_per_worker(self) -> int:
        """Return how many calls of a worker may be in flight: a whole train batch while the learner learns."""
        config = self.config
        if not config.sample_async or config.num_workers == 0:
            return CALLS_PER_WORKER
        steps_per_round = config.fragment_length * config.num_envs_per_worker * config.num_workers
        return max(CALLS_PER_WORKER, math.ceil(config.train_batch_size / steps_per_round))

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        config = self.config
        drawing_seed = derive_seed(seed, "worker", worker_index, "exploration") if config.explore else None
        return WorkerParts(
            make_policy=partial(PPOPolicy, self.policies.network, self.policies.actions, drawing_seed, num_threads),
            fold=Advantages(config.gamma, config.lambda_, config.use_gae, config.use_critic),
        )

    def make_optimizer(self, learner: Learner, source: SampleSource) -> PolicyOptimizer:
        assert isinstance(learner, PPOLearner | LearnerGroup)
        config = self.config
        batch_config = TrainBatchConfig(
            size=config.train_batch_size,
            steps_per_call=config.fragment_length * config.num_envs_per_worker,
            num_workers=config.num_workers,
            overlaps=config.sample_async and config.num_workers > 0,
        )
        return SyncSamplesOptimizer(self.pool, source, learner, batch_config)

    def stats(self) -> Figures:
        """Return no figures of its own; note where ``vf_clip_param`` is far below what the value function learns."""
        target = self.optimizer.learner_stats.get("mean_abs_value_target", 0.0)
        limit = self.config.vf_clip_param
        if self.config.use_critic and target > TARGETS_FAR_ABOVE_CLIP * limit and not self._has_noticed_targets:
            self._has_noticed_targets = True
            self.add_event(
                f"value targets are about {target:,.0f}, but vf_clip_param is {limit:g}: values change slowly;"
                " raise vf_clip_param or scale the rewards"
            )
        return {}


def learner_config(config: PPOConfig) -> PPOLearnerConfig:
    """Return what the keys say about learning."""
    return PPOLearnerConfig(
        lr=PiecewiseSchedule(config.lr_schedule or ((0, config.lr),)),
        entropy_coeff=PiecewiseSchedule(config.entropy_coeff_schedule or ((0, config.entropy_coeff),)),
        adam_epsilon=config.adam_epsilon,
        grad_norm_clipping=config.grad_norm_clipping,
        num_sgd_iter=config.num_sgd_iter,
        sgd_minibatch_size=config.sgd_minibatch_size,
        clip_param=config.clip_param,
        vf_clip_param=config.vf_clip_param,
        vf_loss_coeff=config.vf_loss_coeff if config.use_critic else 0.0,
        kl_coeff=config.kl_coeff,
        kl_target=config.kl_target,
    )
