"""The learner of DDPG, TD3 and Ape-X with DDPG, and what it shares with SAC's: a policy network and critics.

An update is a step of the critics towards their targets, then one of the policy along their gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.torch.device import (
    BatchStaging,
    CapturedWork,
    DeviceNumbers,
    LateNumbers,
    Tensors,
    continue_generator,
    torso_draws,
)
from rlexp.agents.torch.trained_network import FollowedNetwork, TrainedNetwork
from rlexp.errors import TrialError
from rlexp.models.layered import fastest_critics, fastest_policy
from rlexp.models.network_config import PolicyAndCriticsConfig
from rlexp.models.networks import CriticNetworks, PolicyNetwork
from rlexp.policy import LearnResult, LiveWeights, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule, derive_seed

COLUMNS = (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS, IMPORTANCE_WEIGHTS)
RATES, TARGET_NOISE = "rates", "target_noise"
"""Names of further tensors of an update: its Rates, and noise on the next actions."""
NUM_PENDING_ON_GPU = 2
"""Updates that begin before an earlier result is read, so that the GPU has work while its thread copies."""

Rates = Sequence[float] | Tensor
"""Adam's learning rates of an update: for the policy, for the critics, and then an agent's own."""


@dataclass(frozen=True)
class CriticLearnerConfig:
    """The settings that learners with critics share, apart from the networks' shapes."""

    policy_lr: PiecewiseSchedule
    """Adam's learning rate for the policy as a function of sampled steps."""
    critic_lr: PiecewiseSchedule
    adam_epsilon: float
    grad_norm_clipping: float | None
    """Norm to which the gradient of the policy, and the gradient of all critics, are scaled down, or None."""
    target_network_update_freq: int
    """Steps between two updates of the target networks."""
    target_counts_trained: bool
    """Whether these are trained steps or sampled steps."""
    tau: float
    """Share of the way to the online networks that the target networks move in an update."""
    device: str
    huber_threshold: float | None = None
    """The error from which the critics' loss is linear; None: it is squared everywhere."""
    l2_reg: float = 0.0
    """Factor of half the squared weights, without biases, that the loss of each network has added."""


@dataclass(frozen=True)
class CriticStep:
    """What a step of the critics says of its rows, without gradient."""

    loss: Tensor
    mean_q: Tensor
    """Mean value of the actions taken, over all critics."""
    td_errors: Tensor
    """Mean absolute TD error of all critics ``[B]``."""
    grad_norm: Tensor


class CriticLearner(ABC):
    """A PipelinedLearner; owns a policy network, critics with target networks, and an Adam for each of both.

    Used by one thread at a time.
    """

    policy: TrainedNetwork[PolicyNetwork]
    """If it is a FollowedNetwork, its target network moves with the critics'."""
    policy_figures: tuple[str, ...] = ("actor_loss", "actor_grad_norm")
    """Names of the figures of a step of the policy."""

    def __init__(
        self, network: PolicyAndCriticsConfig, config: CriticLearnerConfig, seed: int, note: Callable[[str], None]
    ) -> None:
        """Initialise; ``note`` gets notices for the user."""
        self.settings, self._note = config, note
        self.device = torch.device(config.device)
        adam = self.device, config.adam_epsilon, config.grad_norm_clipping
        self.policy = self.make_policy(lambda: PolicyNetwork(network), derive_seed(seed, "policy"), *adam)
        self.critics = FollowedNetwork(lambda: CriticNetworks(network), derive_seed(seed, "critics"), *adam)
        self.policy_network, self._policy_leaves = fastest_policy(self.policy.module)
        self.critic_networks = fastest_critics(self.critics.module)
        self.target_critics = fastest_critics(self.critics.target)
        self.generator = torch.Generator(self.device).manual_seed(derive_seed(seed, "noise"))
        self._torso_draws = torso_draws([self.policy.module, self.critics.module], seed, self.device)
        self.max_pending_updates = 0 if self.device.type == "cpu" else NUM_PENDING_ON_GPU
        self._live_weights = self.policy.parameters.live_arrays()
        self._staging = BatchStaging(COLUMNS, self.device)
        self._rates = DeviceNumbers(self.device)
        self._update = CapturedWork(self._update_of, [self.policy.module, self.critics.module], self.device, note)
        self._num_steps_sampled = self._num_steps_trained = self._target_updated_at = 0
        self.num_updates = self.num_target_updates = 0
        self.num_threads: int | None = None
        """Threads from the next update on; may be set from another thread. None: the threads that its own thread has.
        """

    def make_policy(self, make: Callable[[], PolicyNetwork], *settings: Any) -> TrainedNetwork[PolicyNetwork]:
        """Return the policy network with its Adam, by default without a target network."""
        return TrainedNetwork(make, *settings)

    @abstractmethod
    def update(self, rows: Tensors, rates: Rates, moves_policy: bool) -> tuple[Sequence[Tensor], CriticStep]:
        """Do one step of the critics, and one of the policy if it ``moves_policy``; return the ``policy_figures``.

        ``rows`` have COLUMNS and ``noise_names``. A GPU does all its operations at once.
        """

    @property
    def noise_names(self) -> tuple[str, ...]:
        """Names of the standard normal noise that an update needs: a tensor as large as the actions for each."""
        return ()

    @property
    def rates(self) -> tuple[float, ...]:
        """Adam's learning rates of the next update, as Rates."""
        return self._lr(self.settings.policy_lr), self._lr(self.settings.critic_lr)

    def moves_policy(self) -> bool:
        """Return whether the next update moves the policy and, if it is time, the target networks."""
        return True

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Do one update on a batch, which has COLUMNS.

        Raises TrialError if a loss or gradient is not finite, as learning cannot continue.
        """
        return self.submit(batch).result()

    def submit(self, batch: SampleBatch) -> CriticUpdate:
        """Begin the update of ``learn_on_batch``; on a CPU it is done when this returns."""
        if self.num_threads not in {None, torch.get_num_threads()}:
            torch.set_num_threads(self.num_threads)
        self._num_steps_trained += batch.count
        rows, moves_policy, own_rates = self._staging.load(batch), self.moves_policy(), self.rates
        shape = batch.count, rows[ACTIONS].shape[1:].numel()
        for name in self.noise_names:
            rows[name] = torch.randn(shape, generator=self.generator, device=self.device)
        rates = self._rates.of(*own_rates)
        with self._torso_draws(self.num_updates):
            if isinstance(rates, Tensor):
                figures, td_errors = self._update({**rows, RATES: rates}, moves_policy)
            else:
                figures, td_errors = self._figures_of(*self.update(rows, rates, moves_policy))
        if moves_policy:
            self._move_targets_when_due()
        self.num_updates += 1
        names = (*self.policy_figures, "critic_loss", "mean_q", "mean_td_error", "critic_grad_norm")
        return CriticUpdate(self.num_updates, names, own_rates[1], LateNumbers(figures, td_errors))

    def _update_of(self, tensors: Tensors, moves_policy: bool) -> tuple[Tensor, Tensor]:
        """Do the update of ``tensors``, which have the rates beside the rows; return all figures, and TD errors."""
        return self._figures_of(*self.update(tensors, tensors[RATES], moves_policy))

    @staticmethod
    def _figures_of(figures: Sequence[Tensor], critics: CriticStep) -> tuple[Tensor, Tensor]:
        of_critics = critics.loss, critics.mean_q, critics.td_errors.mean(), critics.grad_norm
        return torch.stack([*figures, *of_critics]), critics.td_errors

    def stats(self) -> Mapping[str, float | None]:
        return {"num_target_updates": self.num_target_updates, **self.critics.stats()}

    def get_weights(self) -> Weights:
        return self.policy.weights()

    def live_weights(self) -> LiveWeights | None:
        return self._live_weights

    def state_dict(self) -> Mapping[str, Array]:
        state = _with_prefix("policy.", self.policy.state_dict()) | _with_prefix("critics.", self.critics.state_dict())
        counters = (self._num_steps_sampled, self._num_steps_trained, self._target_updated_at)
        state["counters"] = np.array([*counters, self.num_updates, self.num_target_updates])
        return state | {"noise_rng": self.generator.get_state().cpu().numpy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.policy.load_state_dict(_without_prefix("policy.", state))
        self.critics.load_state_dict(_without_prefix("critics.", state))
        if not continue_generator(self.generator, state["noise_rng"]):
            other = "a GPU" if self.device.type == "cpu" else "a CPU"
            self._note(f"the learner draws other noise than without the stop: the checkpoint was written on {other}")
        counters = state["counters"].tolist()
        self._num_steps_sampled, self._num_steps_trained, self._target_updated_at = counters[:3]
        self.num_updates, self.num_target_updates = counters[3:]

    def step_critics(self, rows: Tensors, actions: Tensor | None, targets: Tensor, rates: Rates) -> CriticStep:
        """Step down the weighted loss of the critics' errors at ``targets [B]``; losses of all critics are added.

        A row's loss is half its squared error, or Huber's. ``actions`` are as for ``CriticNetworks``; if it is
        None, each critic's value of the action taken counts.
        """
        values: Tensor = self.critic_networks(rows[OBS], actions)
        if actions is None:
            taken = rows[ACTIONS].long().expand(values.shape[0], -1).unsqueeze(2)
            values = values.gather(2, taken).squeeze(2)
        errors, threshold = values.detach() - targets, self.settings.huber_threshold
        slopes = errors if threshold is None else errors.clamp(-threshold, threshold)
        weighted = slopes * (rows[IMPORTANCE_WEIGHTS] / len(targets))
        self.critics.adam.zero_grad()
        values.backward(weighted)  # type: ignore[no-untyped-call]
        self._add_decay(self.critics)
        norm = self.critics.adam.step(rates[1])
        # Half the squared error, or Huber's: both have these slopes.
        loss = (weighted * (errors - 0.5 * slopes)).sum()
        return CriticStep(loss, values.detach().mean(), errors.abs().mean(dim=0), norm)

    def step_policy(self, loss: Tensor, rates: Rates) -> Tensor:
        """Step down ``loss``; return the norm of the policy's gradient. The critics' gradient is not computed."""
        self.policy.adam.zero_grad()
        torch.autograd.backward(loss, inputs=self._policy_leaves)
        self._add_decay(self.policy)
        return self.policy.adam.step(rates[0])

    def _move_targets_when_due(self) -> None:
        """Update the target networks if so many steps have passed."""
        settings = self.settings
        now = self._num_steps_trained if settings.target_counts_trained else self._num_steps_sampled
        if now - self._target_updated_at < settings.target_network_update_freq:
            return
        for network in (self.policy, self.critics):
            if isinstance(network, FollowedNetwork):
                network.move_target(settings.tau)
        self._target_updated_at = now
        self.num_target_updates += 1

    def _add_decay(self, network: TrainedNetwork[Any]) -> None:
        """Add the gradient of half the squared weights, times ``l2_reg``."""
        if self.settings.l2_reg:
            parameters = network.parameters
            for gradient, weights in zip(
                parameters.views(network.adam.gradient), parameters.views(parameters.values), strict=True
            ):
                if weights.ndim > 1:
                    gradient.add_(weights, alpha=self.settings.l2_reg)

    def _lr(self, schedule: PiecewiseSchedule) -> float:
        return schedule.value(self._num_steps_sampled)


def taken_numbers(rows: Tensors) -> Tensor:
    """Return the numbers of the continuous actions taken ``[B, D]``, float32."""
    actions = rows[ACTIONS]
    return actions.reshape(len(actions), -1).to(torch.float32)


class CriticUpdate:
    """A PendingUpdate of a CriticLearner: its stats and TD errors, on their way from the device."""

    def __init__(self, number: int, names: tuple[str, ...], lr: float, numbers: LateNumbers) -> None:
        """Initialise with the results of update ``number``: the stats of ``names``, then the TD errors."""
        self._number, self._names, self._lr, self._numbers = number, names, lr, numbers

    def result(self) -> LearnResult:
        figures, td_errors = self._numbers.read()
        stats = dict(zip(self._names, figures.tolist(), strict=True))
        broken = [f"{name} is {figure:g}" for name, figure in stats.items() if not math.isfinite(figure)]
        if broken:
            hint = "training diverged: lower lr, actor_lr and critic_lr, or set grad_norm_clipping or clip_rewards"
            raise TrialError(f"{', '.join(broken)} at update {self._number:,}", hint)
        return LearnResult(stats | {"lr": self._lr}, td_errors)


@dataclass(frozen=True)
class DDPGLearnerConfig(CriticLearnerConfig):
    """The settings of DDPG and TD3."""

    policy_delay: int = 1
    """Updates of the critics for each of the policy and of the target networks."""
    target_noise: float | None = None
    """Standard deviation of the noise on the target policy's actions, in half their range; None: none."""
    target_noise_clip: float = 0.5
    """Largest noise."""


class DDPGLearner(CriticLearner):
    """The learner of DDPG (Lillicrap et al. 2016, algorithm 1) and TD3 (Fujimoto et al. 2018, algorithm 1)."""

    settings: DDPGLearnerConfig
    policy: FollowedNetwork[PolicyNetwork]

    def __init__(
        self, network: PolicyAndCriticsConfig, config: DDPGLearnerConfig, seed: int, note: Callable[[str], None]
    ) -> None:
        """Initialise; ``note`` gets notices for the user."""
        super().__init__(network, config, seed, note)
        self._target_policy, _ = fastest_policy(self.policy.target)
        self._policy_figures = torch.zeros(len(self.policy_figures), device=self.device)

    def make_policy(self, make: Callable[[], PolicyNetwork], *settings: Any) -> FollowedNetwork[PolicyNetwork]:
        return FollowedNetwork(make, *settings)

    def moves_policy(self) -> bool:
        return (self.num_updates + 1) % self.settings.policy_delay == 0

    @property
    def noise_names(self) -> tuple[str, ...]:
        return () if self.settings.target_noise is None else (TARGET_NOISE,)

    def update(self, rows: Tensors, rates: Rates, moves_policy: bool) -> tuple[Sequence[Tensor], CriticStep]:
        critics = self.step_critics(rows, taken_numbers(rows), self._targets(rows), rates)
        if moves_policy:
            loss = -self.critic_networks.first(rows[OBS], self.policy_network(rows[OBS]).tanh()).mean()
            norm = self.step_policy(loss, rates)
            self._policy_figures.copy_(torch.stack([loss.detach(), norm]))
        return self._policy_figures.unbind(), critics

    def state_dict(self) -> Mapping[str, Array]:
        return {**super().state_dict(), "policy_figures": self._policy_figures.cpu().numpy().copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self._policy_figures.copy_(torch.tensor(state["policy_figures"]))

    @torch.no_grad()
    def _targets(self, rows: Tensors) -> Tensor:
        """Return ``R + d min_c Q'_c(s', a')`` ``[B]``, with noise on ``a' = mu'(s')`` for TD3 (section 5.3)."""
        actions = self._target_policy(rows[NEW_OBS]).tanh()
        if self.settings.target_noise is not None:
            most, noise = self.settings.target_noise_clip, rows[TARGET_NOISE]
            actions = (actions + (noise * self.settings.target_noise).clamp(-most, most)).clamp(-1.0, 1.0)
        lowest = self.target_critics(rows[NEW_OBS], actions).amin(dim=0)
        return rows[REWARDS] + rows[DISCOUNTS] * lowest


def _with_prefix(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}{name}": array for name, array in state.items()}


def _without_prefix(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
