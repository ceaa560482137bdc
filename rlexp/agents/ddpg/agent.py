"""DDPG, TD3 and Ape-X with DDPG: the learner with a policy network and critics, and the agents.

An update is a step of the critics towards their targets, then one of the policy along their gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.apex.data_path import ApexReplayAgent
from rlexp.agents.ddpg.policy import DDPGPolicies, Players, PolicyNetworkPolicies
from rlexp.agents.off_policy_agent import OffPolicyAgent
from rlexp.agents.torch.device import BatchStaging, LateNumbers, continue_generator, learner_device
from rlexp.agents.torch.trained_network import FollowedNetwork, TrainedNetwork
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.ddpg import ApexDDPGConfig, CriticKeys, DDPGConfig
from rlexp.errors import TrialError
from rlexp.models.layered import fastest_critics, fastest_policy
from rlexp.models.network_config import PolicyAndCriticsConfig
from rlexp.models.networks import CriticNetworks, PolicyNetwork
from rlexp.optimizers.policy_optimizer import Figures
from rlexp.policy import LearnResult, LiveWeights, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule, derive_seed

COLUMNS = (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS, IMPORTANCE_WEIGHTS)
NUM_PENDING_ON_GPU = 2
"""Updates that begin before an earlier result is read, so that the GPU has work while its thread copies."""

Rows = Mapping[str, Tensor]
"""The COLUMNS of a batch ``[B, ...]`` on the learner's device."""


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
        self.max_pending_updates = 0 if self.device.type == "cpu" else NUM_PENDING_ON_GPU
        self._live_weights = self.policy.parameters.live_arrays()
        self._staging = BatchStaging(COLUMNS, self.device)
        self._num_steps_sampled = self._num_steps_trained = self._target_updated_at = 0
        self.num_updates = self.num_target_updates = 0
        self.num_threads: int | None = None
        """Threads from the next update on; may be set from another thread. None: the threads that its own thread has.
        """

    def make_policy(self, make: Callable[[], PolicyNetwork], *settings: Any) -> TrainedNetwork[PolicyNetwork]:
        """Return the policy network with its Adam, by default without a target network."""
        return TrainedNetwork(make, *settings)

    @abstractmethod
    def update(self, rows: Rows) -> tuple[dict[str, Tensor], CriticStep]:
        """Do one step of the critics, and one of the policy; return the figures of the policy, by name."""

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
        figures, critics = self.update(self._staging.load(batch))
        self.num_updates += 1
        figures |= {"critic_loss": critics.loss, "mean_q": critics.mean_q, "mean_td_error": critics.td_errors.mean()}
        figures["critic_grad_norm"] = critics.grad_norm
        numbers = LateNumbers(torch.stack(list(figures.values())), critics.td_errors)
        return CriticUpdate(self.num_updates, tuple(figures), self._lr(self.settings.critic_lr), numbers)

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

    def step_critics(self, rows: Rows, actions: Tensor | None, targets: Tensor) -> CriticStep:
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
        norm = self.critics.adam.step(self._lr(self.settings.critic_lr))
        # Half the squared error, or Huber's: both have these slopes.
        loss = (weighted * (errors - 0.5 * slopes)).sum()
        return CriticStep(loss, values.detach().mean(), errors.abs().mean(dim=0), norm)

    def step_policy(self, loss: Tensor) -> Tensor:
        """Step down ``loss``; return the norm of the policy's gradient. The critics' gradient is not computed."""
        self.policy.adam.zero_grad()
        torch.autograd.backward(loss, inputs=self._policy_leaves)
        self._add_decay(self.policy)
        return self.policy.adam.step(self._lr(self.settings.policy_lr))

    def move_targets_when_due(self) -> None:
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


def taken_numbers(rows: Rows) -> Tensor:
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
        self._policy_figures = {name: torch.zeros((), device=self.device) for name in ("actor_loss", "actor_grad_norm")}

    def make_policy(self, make: Callable[[], PolicyNetwork], *settings: Any) -> FollowedNetwork[PolicyNetwork]:
        return FollowedNetwork(make, *settings)

    def update(self, rows: Rows) -> tuple[dict[str, Tensor], CriticStep]:
        critics = self.step_critics(rows, taken_numbers(rows), self._targets(rows))
        if (self.num_updates + 1) % self.settings.policy_delay == 0:
            loss = -self.critic_networks.first(rows[OBS], self.policy_network(rows[OBS]).tanh()).mean()
            norm = self.step_policy(loss)
            self._policy_figures = {"actor_loss": loss.detach(), "actor_grad_norm": norm}
            self.move_targets_when_due()
        return dict(self._policy_figures), critics

    def state_dict(self) -> Mapping[str, Array]:
        figures = torch.stack(list(self._policy_figures.values())).cpu().numpy()
        return {**super().state_dict(), "policy_figures": figures}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        figures = torch.tensor(state["policy_figures"], device=self.device)
        self._policy_figures = dict(zip(self._policy_figures, figures, strict=True))

    @torch.no_grad()
    def _targets(self, rows: Rows) -> Tensor:
        """Return ``R + d min_c Q'_c(s', a')`` ``[B]``, with noise on ``a' = mu'(s')`` for TD3 (section 5.3)."""
        actions = self._target_policy(rows[NEW_OBS]).tanh()
        if self.settings.target_noise is not None:
            noise = torch.randn(actions.shape, generator=self.generator, device=self.device)
            most = self.settings.target_noise_clip
            actions = (actions + (noise * self.settings.target_noise).clamp(-most, most)).clamp(-1.0, 1.0)
        lowest = self.target_critics(rows[NEW_OBS], actions).amin(dim=0)
        return rows[REWARDS] + rows[DISCOUNTS] * lowest


def _with_prefix(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}{name}": array for name, array in state.items()}


def _without_prefix(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


CriticKeysT = TypeVar("CriticKeysT", bound=CriticKeys)
DDPGConfigT = TypeVar("DDPGConfigT", bound=DDPGConfig)


class CriticAgent(OffPolicyAgent[CriticKeysT]):
    """An agent with a policy network and critics that learn from replay."""

    policies: PolicyNetworkPolicies[Any]

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        return self._players.parts(worker_index, seed, num_threads)

    def lr_schedule(self, lr: float | None) -> PiecewiseSchedule:
        """Return the schedule of a learning rate; None: the schedule for all networks."""
        config = self.config
        return PiecewiseSchedule(((0, lr),) if lr else config.lr_schedule or ((0, config.lr),))

    def learner_settings(self, policy_lr: float | None, critic_lr: float | None) -> dict[str, Any]:
        """Return the fields that the learner's config has in all these agents; let torch use the driver's CPUs."""
        config = self.config
        torch.set_num_threads(max(int(config.num_cpus_for_driver), 1))
        return {
            "policy_lr": self.lr_schedule(policy_lr),
            "critic_lr": self.lr_schedule(critic_lr),
            "adam_epsilon": config.adam_epsilon,
            "grad_norm_clipping": config.grad_norm_clipping,
            "target_network_update_freq": config.target_network_update_freq,
            "target_counts_trained": self.target_counts_trained,
            "tau": config.tau,
            "device": learner_device(config.num_gpus),
        }

    @cached_property
    def _players(self) -> Players:
        return Players(self.policies, 0 if self.board is None else self.config.board.actors)


class DDPGAgent(CriticAgent[DDPGConfigT]):
    """DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018), with one replay shard in the learner's process."""

    POLICIES = DDPGPolicies
    policies: DDPGPolicies

    def make_learner(self) -> CriticLearner:
        config = self.config
        learner_config = DDPGLearnerConfig(
            **self.learner_settings(config.actor_lr, config.critic_lr),
            huber_threshold=config.huber_threshold if config.use_huber else None,
            policy_delay=config.policy_delay,
            target_noise=config.target_noise if config.smooth_target_policy else None,
            target_noise_clip=config.target_noise_clip,
            l2_reg=config.l2_reg,
        )
        return DDPGLearner(self.policies.network, learner_config, derive_seed(self.seed, "learner"), self.add_event)

    def stats(self) -> Figures:
        """Return the largest factor of the noise at the steps sampled so far, and the stats of a board."""
        players, sampled = self._players.number, self.optimizer.counters.num_steps_sampled
        late = max(sampled - self.config.pure_exploration_steps, 0)
        return {
            "noise_scale": max(self.policies.scale(index, players).value(late) for index in range(players)),
            **super().stats(),
        }


class ApexDDPGAgent(ApexReplayAgent[ApexDDPGConfig], DDPGAgent[ApexDDPGConfig]):
    """Distributed prioritized experience replay with DDPG (Horgan et al. 2018, section 4.2)."""
