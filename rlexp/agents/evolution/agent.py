"""ES and ARS: workers play episodes with changed weights, then the learner makes one step by their returns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.evolution.policy import (
    RETURNS,
    SEEDS,
    ChangedPolicies,
    EvolutionPolicies,
    RolloutPlan,
    added_up,
    weights_of_best,
    weights_of_ranks,
)
from rlexp.agents.evolution.worker import EvolutionWorker
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.agents.workers import MakeWorker, WorkerParts
from rlexp.config.keys.evolution import ARSConfig, ESConfig, EvolutionKeys
from rlexp.errors import TrialError
from rlexp.models.network_config import PolicyAndCriticsConfig
from rlexp.models.networks import PolicyNetwork
from rlexp.models.torsos import load_weights, tensors_of
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.optimizers.sync_samples_optimizer import TrainBatchConfig
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.sample_batch import Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule, derive_seed


@dataclass(frozen=True)
class EvolutionLearning:
    """The settings of a learner, apart from the network's shape."""

    lr: PiecewiseSchedule
    """Size of a step over sampled steps."""
    grad_norm_clipping: float | None
    """Norm that the gradient is scaled down to, or None."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon, in ES."""
    l2_coeff: float = 0.0
    """Factor of the weights that ES takes from the gradient."""
    num_used: int = 1
    """Directions that ARS uses."""


class EvolutionLearner:
    """A TrainBatchLearner whose rows are directions; owns the policy network; used by one thread at a time."""

    def __init__(self, network: PolicyAndCriticsConfig, learning: EvolutionLearning, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._module = PolicyNetwork(network).requires_grad_(False)
        self._learning = learning
        self._parameters = FlatParameters(self._module)
        self._num_steps_sampled = 0
        self.num_updates = 0

    @abstractmethod
    def weigh(self, returns: Array) -> Array:
        """Return the weight of each direction ``[B]`` from ``returns [B, 2]``."""

    @abstractmethod
    def move(self, gradient: Tensor, lr: float) -> None:
        """Move the weights along ``gradient [N]``, which leads to higher returns."""

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Make one step on the directions of ``batch``, which is too short to be interrupted by ``should_stop``."""
        returns = batch[RETURNS]
        lr = self._learning.lr.value(self._num_steps_sampled)
        values = self._parameters.values
        gradient = self._in_layout(added_up(batch[SEEDS], self.weigh(returns), values.numel()))
        norm = float(torch.linalg.vector_norm(gradient))
        most = self._learning.grad_norm_clipping
        if most is not None and norm > most:
            gradient *= most / norm
        before = values.clone()
        self.move(gradient, lr)
        self.num_updates += 1
        moved, size = (float(torch.linalg.vector_norm(each)) for each in (values - before, values))
        if not np.isfinite(size):
            raise TrialError(f"the weights are not finite after update {self.num_updates}", "lower lr")
        stats = {"grad_norm": norm, "weights_norm": size, "update_ratio": moved / max(size, 1e-12), "lr": lr}
        return LearnResult(stats | {"return_deviation": float(returns.std())})

    def stats(self) -> Mapping[str, float | None]:
        return {}

    def get_weights(self) -> Weights:
        return self._parameters.arrays()

    def state_dict(self) -> Mapping[str, Array]:
        state = {f"network.{name}": array for name, array in self._parameters.arrays().items()}
        return state | {"counters": np.array([self._num_steps_sampled, self.num_updates])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        load_weights(self._module, tensors_of(state, "network."))
        self._num_steps_sampled, self.num_updates = state["counters"].tolist()

    def _in_layout(self, numbers: Array) -> Tensor:
        """Return ``numbers [N]``, parameter after parameter, in the layout of the parameters' memory."""
        flat, start = torch.empty_like(self._parameters.values), 0
        for view in self._parameters.views(flat):
            part = numbers[start : start + view.numel()]
            view.copy_(torch.from_numpy(part).reshape(view.shape))
            start += view.numel()
        return flat


class ESLearner(EvolutionLearner):
    """Weighs by ranks, and takes a step of Adam (Salimans et al. 2017)."""

    def __init__(self, network: PolicyAndCriticsConfig, learning: EvolutionLearning, seed: int) -> None:
        super().__init__(network, learning, seed)
        self._adam = FlatAdam(self._parameters, learning.adam_epsilon, max_norm=None)

    def weigh(self, returns: Array) -> Array:
        return weights_of_ranks(returns)

    def move(self, gradient: Tensor, lr: float) -> None:
        torch.sub(self._learning.l2_coeff * self._parameters.values, gradient, out=self._adam.gradient)
        self._adam.step(lr)

    def stats(self) -> Mapping[str, float | None]:
        return {"adam_step_share": self._adam.step_share()}

    def state_dict(self) -> Mapping[str, Array]:
        adam = {f"adam.{name}": tensor.numpy().copy() for name, tensor in self._adam.state_dict().items()}
        return {**super().state_dict(), **adam}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self._adam.load_state_dict(tensors_of(state, "adam."))


class ARSLearner(EvolutionLearner):
    """Weighs the best directions by their returns, and takes a plain step (Mania et al. 2018, algorithm 1)."""

    def weigh(self, returns: Array) -> Array:
        return weights_of_best(returns, self._learning.num_used)

    def move(self, gradient: Tensor, lr: float) -> None:
        self._parameters.values.add_(gradient, alpha=lr)


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
