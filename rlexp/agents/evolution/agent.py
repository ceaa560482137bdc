"""ES and ARS: workers play episodes with changed weights, then the learner makes one step by their returns."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from rlexp.agents.evolution.learner import ARSLearner, ESLearner, EvolutionLearner, EvolutionLearning
from rlexp.agents.evolution.policy import ChangedPolicies, EvolutionPolicies, RolloutPlan
from rlexp.agents.evolution.worker import EvolutionWorker
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.workers import MakeWorker, WorkerParts
from rlexp.config.keys.evolution import ARSConfig, ESConfig, EvolutionKeys
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.optimizers.sync_samples_optimizer import TrainBatchConfig
from rlexp.schedules import PiecewiseSchedule, derive_seed

EvolutionKeysT = TypeVar("EvolutionKeysT", bound=EvolutionKeys)


class EvolutionAgent(SyncSamplesAgent[EvolutionKeysT]):
    """An agent that learns from the returns of episodes with changed weights."""

    POLICIES = EvolutionPolicies
    policies: EvolutionPolicies

    @abstractmethod
    def make_learner(self) -> EvolutionLearner:
        """Return the learner."""

    @property
    def offset(self) -> float:
        """Number that is taken from each reward."""
        return 0.0

    def waits_for(self) -> str:
        return f"{2 * self.config.num_directions:,} episodes have ended"

    def worker_class(self) -> MakeWorker:
        return EvolutionWorker

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        config, policies = self.config, self.policies
        plan = RolloutPlan(
            num_directions=config.directions_per_call,
            eval_prob=config.eval_prob,
            offset=self.offset,
            noise_stdev=config.noise_stdev,
            action_noise_std=config.action_noise_std,
        )
        own_seed = derive_seed(seed, "worker", worker_index, "exploration")
        parts = policies.network, policies.actions, plan, config.num_envs_per_worker, own_seed, num_threads
        return WorkerParts(make_policy=partial(ChangedPolicies, *parts))

    def train_batch_config(self) -> TrainBatchConfig:
        """Return that a train batch is a number of directions, each a row."""
        config = self.config
        return TrainBatchConfig(
            size=config.num_directions,
            steps_per_call=config.directions_per_call,
            num_workers=1,
            overlaps=False,
            least_env_steps=config.least_env_steps,
            calls_for_more=max(config.num_workers, 1),
        )

    def learning(self) -> EvolutionLearning:
        """Return the settings of either learner."""
        config = self.config
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        lr = PiecewiseSchedule(config.lr_schedule or ((0, config.lr),))
        return EvolutionLearning(lr, config.grad_norm_clipping, config.adam_epsilon)

    def stats(self) -> Figures:
        return {}


class ESAgent(EvolutionAgent[ESConfig]):
    """Evolution strategies (Salimans et al. 2017)."""

    def make_learner(self) -> ESLearner:
        learning = replace(self.learning(), l2_coeff=self.config.l2_coeff)
        return ESLearner(self.policies.network, learning, derive_seed(self.seed, "learner"))


class ARSAgent(EvolutionAgent[ARSConfig]):
    """Augmented random search (Mania et al. 2018)."""

    @property
    def offset(self) -> float:
        return self.config.offset

    def make_learner(self) -> ARSLearner:
        used = min(self.config.rollouts_used or self.config.num_rollouts, self.config.num_rollouts)
        learning = replace(self.learning(), num_used=used)
        return ARSLearner(self.policies.network, learning, derive_seed(self.seed, "learner"))
