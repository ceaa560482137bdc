"""PQN: workers explore epsilon-greedily; the learner does epochs of SGD towards their returns of Q(lambda)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rlexp.agents.pqn.players import PQNPolicies, PQNWorkerParts
from rlexp.agents.sync_samples_agent import SyncSamplesAgent
from rlexp.agents.torch.device import BatchStaging, CapturedWork, Tensors, learner_device, torso_draws
from rlexp.agents.torch.trained_network import EpochsLearner, TrainedNetwork, refuse_divergence
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.pqn import PQNConfig
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import VALUE_TARGETS
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from rlexp.schedules import PiecewiseSchedule, derive_seed

COLUMNS = (OBS, ACTIONS, VALUE_TARGETS)
FIGURES = ("loss", "mean_q", "mean_td_error", "grad_norm")


@dataclass(frozen=True)
class PQNLearnerConfig:
    """The settings of a PQN learner, apart from the network's shape."""

    lr: PiecewiseSchedule
    """Adam's learning rate as a function of sampled steps."""
    adam_epsilon: float
    grad_norm_clipping: float | None
    """Global norm to which gradients are scaled down, or None."""
    num_sgd_iter: int
    """Epochs over a train batch."""
    sgd_minibatch_size: int
    device: str = "cpu"


class PQNLearner(EpochsLearner[QNetwork]):
    """Owns the Q-network and Adam; used by one thread at a time. There is no target network."""

    def __init__(
        self, network: QNetworkConfig, config: PQNLearnerConfig, seed: int, note: Callable[[str], None]
    ) -> None:
        """Initialise; ``note`` gets notices for the user."""
        self._config = config
        device = torch.device(config.device)
        trained = TrainedNetwork(
            lambda: QNetwork(network), seed, device, config.adam_epsilon, config.grad_norm_clipping
        )
        super().__init__(trained, config.num_sgd_iter, config.sgd_minibatch_size, seed)
        self._network = trained.module
        self._torso_draws = torso_draws([self._network], seed, device)
        self._staging = BatchStaging(COLUMNS, device, num_slots=1)
        self._backward = CapturedWork(self._backward_of, [self._network], device, note)

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Do all epochs over a train batch, which has COLUMNS; the stats are means over the last epoch.

        Raises TrialError if the loss or its gradient is not finite, as learning cannot continue. Raises
        InterruptedLearningError if ``should_stop``, which is called before each SGD step, returns True.
        """
        columns = self._staging.load(batch)
        rows = {**columns, ACTIONS: columns[ACTIONS].to(torch.int64)}
        lr = self._config.lr.value(self._num_steps_sampled)

        def update(indices: Tensor, measures: bool) -> Tensor | None:
            minibatch = {name: column.index_select(0, indices) for name, column in rows.items()}
            with self._torso_draws(self.num_updates):
                figures = self._backward(minibatch, measures)
            norm = self._adam.step(lr)
            return torch.stack([*figures, norm]) if measures else None

        means = self.train_epochs(batch.count, update, should_stop).mean(dim=0)
        stats = dict(zip(FIGURES, means.tolist(), strict=True))
        hint = "lower lr, set grad_norm_clipping or clip_rewards, or write model.layer_norm: true"
        refuse_divergence(stats["loss"], stats["grad_norm"], self.num_updates, hint)
        return LearnResult(stats | {"lr": lr})

    def _backward_of(self, rows: Tensors, measures: bool) -> Sequence[Tensor]:
        """Compute the gradient of ``1/2 mean (Q(s, a) - R)^2``; return the minibatch's stats if ``measures``.

        ``rows`` have COLUMNS. Their VALUE_TARGETS are the returns R, which carry no gradient (Gallici et al. 2024,
        algorithm 1).
        """
        values = self._network(rows[OBS])
        errors = values.gather(1, rows[ACTIONS].unsqueeze(1)).squeeze(1) - rows[VALUE_TARGETS]
        loss = 0.5 * errors.square().mean()
        self._adam.zero_grad()
        loss.backward()
        if not measures:
            return []
        return [loss.detach(), values.detach().mean(), errors.detach().abs().mean()]


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
        return PQNLearner(self.policies.network, learner_config, derive_seed(self.seed, "learner"), self.add_event)

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self._players.parts(worker_index, seed, num_threads)

    def stats(self) -> Figures:
        """Return ε at the steps sampled so far."""
        return self._players.figures(self.optimizer.counters.num_steps_sampled)

    @cached_property
    def _players(self) -> PQNWorkerParts:
        return PQNWorkerParts(self.config, self.policies.network)
