"""The fifth hop of the data: one SGD step on a batch, and the target network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.dqn.objective import row_losses
from rlexp.agents.staging import BatchStaging
from rlexp.models import QNetworkConfig
from rlexp.models.q_network import QNetwork
from rlexp.policy import LearnResult, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, WEIGHTS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

COLUMNS = (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS, WEIGHTS)


@dataclass(frozen=True)
class DQNLearnerConfig:
    """What a DQN learner needs to know, apart from the network's shape."""

    lr: PiecewiseSchedule
    """Adam's learning rate over sampled steps."""
    adam_epsilon: float
    grad_norm_clipping: float | None
    """Global norm that gradients are scaled down to, or None."""
    double_q: bool
    target_network_update_freq: int
    """Steps between two copies of the online network into the target network."""
    target_counts_trained: bool
    """Whether those are trained steps (APEX) or sampled ones (DQN)."""
    device: str


class DQNLearner:
    """Owns the online network, the target network and Adam; used by one thread at a time."""

    def __init__(self, network: QNetworkConfig, config: DQNLearnerConfig, seed: int) -> None:
        self._config = config
        device = torch.device(config.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = QNetwork(network).to(device)
        self._target = QNetwork(network).to(device).requires_grad_(False)
        self._target.load_state_dict(self._network.state_dict())
        self._parameters = list(self._network.parameters())
        self._adam = torch.optim.Adam(self._parameters, lr=config.lr.value(0), eps=config.adam_epsilon, fused=True)
        self._staging = BatchStaging(COLUMNS, device)
        self._noise = torch.Generator(device).manual_seed(seed)
        self._num_steps_sampled = 0
        self._num_steps_trained = 0
        self._target_updated_at = 0
        self.num_updates = 0
        self.num_target_updates = 0

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Do one step of Adam; the batch has OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS and WEIGHTS."""
        rows = self._staging.load(batch)
        for network in (self._network, self._target):
            network.resample_noise(self._noise)
        result = row_losses(self._network, self._target, rows, self._config.double_q)
        loss = (rows[WEIGHTS] * result.losses).mean()
        self._adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.grad_norm_clipping or torch.inf)
        self._set_learning_rate()
        self._adam.step()
        self.num_updates += 1
        self._num_steps_trained += batch.count
        self._update_target_when_due()
        figures = [loss.detach(), result.q_tm1.mean(), result.td_errors.mean(), grad_norm.detach()]
        stats = dict(zip(("loss", "mean_q", "mean_td_error", "grad_norm"), torch.stack(figures).tolist(), strict=True))
        return LearnResult(result.td_errors.cpu().numpy(), stats | {"lr": self._adam.param_groups[0]["lr"]})

    def get_weights(self) -> Weights:
        return _arrays(self._network.state_dict())

    def state_dict(self) -> Mapping[str, Array]:
        state = {f"network.{name}": array for name, array in _arrays(self._network.state_dict()).items()}
        state |= {f"target.{name}": array for name, array in _arrays(self._target.state_dict()).items()}
        for index, moments in self._adam.state_dict()["state"].items():
            state |= {f"adam.{index}.{name}": array for name, array in _arrays(moments).items()}
        state["noise_rng"] = self._noise.get_state().cpu().numpy()
        counters = (self._num_steps_sampled, self._num_steps_trained, self._target_updated_at)
        return state | {"counters": np.array([*counters, self.num_updates, self.num_target_updates])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._network.load_state_dict(_tensors(state, "network."))
        self._target.load_state_dict(_tensors(state, "target."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _tensors(state, "adam.").items():
            index, _, moment = name.partition(".")
            moments.setdefault(int(index), {})[moment] = tensor
        self._adam.load_state_dict({"state": moments, "param_groups": self._adam.state_dict()["param_groups"]})
        self._noise.set_state(torch.tensor(state["noise_rng"]))
        counters = state["counters"].tolist()
        self._num_steps_sampled, self._num_steps_trained, self._target_updated_at = counters[:3]
        self.num_updates, self.num_target_updates = counters[3:]

    def _set_learning_rate(self) -> None:
        for group in self._adam.param_groups:
            group["lr"] = self._config.lr.value(self._num_steps_sampled)

    def _update_target_when_due(self) -> None:
        now = self._num_steps_trained if self._config.target_counts_trained else self._num_steps_sampled
        if now - self._target_updated_at >= self._config.target_network_update_freq:
            self._target.load_state_dict(self._network.state_dict())
            self._target_updated_at = now
            self.num_target_updates += 1


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def _tensors(state: Mapping[str, Array], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): torch.tensor(a) for name, a in state.items() if name.startswith(prefix)}
