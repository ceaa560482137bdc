"""R2D2: DQN and Ape-X with a recurrent network and a loss on sequences (Kapturowski et al. 2019).

``_tm1`` is the step that acted, ``_t`` the one from which its return bootstraps, as in DQN's ``loss``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.apex.data_path import ApexReplayAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.learner import BatchGradient, DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.loss import BatchLoss, huber
from rlexp.agents.r2d2.policy import ETA, R2D2Policies, rescaled, unrescaled
from rlexp.agents.torch.device import BatchStaging, forward_passes
from rlexp.config.keys.r2d2 import ApexR2D2Config, R2D2Config
from rlexp.models.lstm import Sequences
from rlexp.models.memory import PREVIOUS, STATE_IN
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.rollout.sequences import NUM_BURNED, NUM_FOLDED, ReplaySequences
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, OBS, REWARDS, Array, SampleBatch
from rlexp.schedules import derive_seed


@dataclass(frozen=True)
class R2D2Settings:
    """The settings of R2D2's loss, beside a DQNLearnerConfig."""

    sequences: ReplaySequences
    """The form of the rows."""
    h_epsilon: float | None
    """The ``epsilon`` of the rescaling of values; None: values are not rescaled."""


class _Part(NamedTuple):
    """Some of the steps of each sequence, without padding, one sequence after another."""

    sequence: Tensor
    """The sequence ``[N]`` of each step."""
    step: Tensor
    """The place ``[N]`` of each step in its sequence."""
    lengths: Tensor
    """Steps ``[B]`` of each sequence, on the CPU."""


class SequenceGradient:
    """Writes the gradient of the loss on sequences to where the learner's Adam reads it."""

    def __init__(self, learner: DQNLearner, settings: R2D2Settings) -> None:
        self._online, self._target, self._adam = learner.network, learner.target, learner.adam
        self._config, self._form, self._h_epsilon = learner.config, settings.sequences, settings.h_epsilon
        self._device = torch.device(self._config.device)
        assert self._online.memory is not None
        self._cell_size = self._online.memory.num_features
        optional = {STATE_IN: self._form.stores_states, PREVIOUS: self._online.memory.sees_previous}
        columns = (OBS, ACTIONS, REWARDS, DISCOUNTS, IMPORTANCE_WEIGHTS)
        self._staging = BatchStaging((*columns, *(name for name, has in optional.items() if has)), self._device)

    def compute(self, batch: SampleBatch) -> BatchLoss:
        """Replace the gradient by the gradient of a batch of ``ReplaySequences``."""
        num_folded = batch[NUM_FOLDED]
        num_learned = np.count_nonzero(num_folded, axis=1)
        last = num_folded[np.arange(len(num_folded)), num_learned - 1]
        burned, learned, seen = (self._part(each) for each in (batch[NUM_BURNED], num_learned, num_learned + last))
        rows = self._staging.load(batch)
        side_by_side = rows[OBS]
        rows[OBS] = side_by_side.reshape(*side_by_side.shape[:-1], self._form.num_obs, -1).movedim(-2, 1)
        flat = rows[OBS][seen.sequence, self._form.burn_in + seen.step]
        with forward_passes(self._config.precision, self._device):
            q_online = self._values(self._online, rows, burned, seen, flat)
            with torch.no_grad():
                q_target = self._values(self._target, rows, burned, seen, flat)
        selector = q_online.detach() if self._config.double_q else q_target
        if self._online.masking is not None:
            selector = self._online.masking.of_tensors(selector, flat)
        folded = torch.from_numpy(num_folded[num_folded > 0].astype(np.int64)).to(self._device)
        tm1 = (seen.lengths.cumsum(0) - seen.lengths).to(self._device)[learned.sequence] + learned.step
        q_t = q_target.gather(1, selector.argmax(dim=1, keepdim=True)).squeeze(1)[tm1 + folded]
        td = self._td_errors(rows, learned, q_online[tm1], q_t)
        loss = (rows[IMPORTANCE_WEIGHTS][learned.sequence] * huber(td)).mean()
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        errors = td.detach().abs()
        figures = torch.stack([loss.detach(), q_online.detach()[tm1].mean(), errors.mean()])
        return BatchLoss(figures, priorities(errors, learned.sequence, len(num_folded)))

    def _values(
        self, network: QNetwork, rows: Mapping[str, Tensor], burned: _Part, seen: _Part, flat: Tensor
    ) -> Tensor:
        """Return the action values ``[N, A]`` for ``flat [N, ...]``, the observations ``seen`` after the burn-in.

        The burn-in gives the state before them, without gradient (section 3).
        """
        obs, states = rows[OBS], rows.get(STATE_IN)
        if states is None:
            states = torch.zeros(len(obs), 2 * self._cell_size, device=self._device)
        has_burn_in = burned.lengths.nonzero()[:, 0]
        if len(has_burn_in):
            places = has_burn_in.to(self._device)
            previous = _previous(rows, burned.sequence, burned.step)
            sequences = Sequences(burned.lengths[has_burn_in], states[places], previous)
            with torch.no_grad():
                assert network.memory is not None
                features = network.torso.features(network.seen(obs[burned.sequence, burned.step]))
                states = states.index_copy(0, places, network.memory(features, sequences)[1].float())
        previous = _previous(rows, seen.sequence, self._form.burn_in + seen.step)
        outputs, _ = network.recurrent_outputs(network.seen(flat), Sequences(seen.lengths, states, previous))
        return network.values(outputs.float())

    def _td_errors(self, rows: Mapping[str, Tensor], learned: _Part, q_tm1: Tensor, q_t: Tensor) -> Tensor:
        """Return the TD errors ``[n]`` of the learned steps with the values ``q_tm1 [n, A]``, and ``q_t [n]`` later.

        With h, an error is h(r + discount h^-1(q_t)) - q_tm1 (section 2.3).
        """
        a_tm1, r_t, discount_t = (rows[name][learned.sequence, learned.step] for name in (ACTIONS, REWARDS, DISCOUNTS))
        epsilon = self._h_epsilon
        if epsilon is None:
            target_tm1 = r_t + discount_t * q_t
        else:
            target_tm1 = rescaled(r_t + discount_t * unrescaled(q_t, epsilon), epsilon)
        return target_tm1 - q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)

    def _part(self, lengths: Array) -> _Part:
        """Return the first ``lengths [B]`` steps of each sequence."""
        sequence, step = np.nonzero(np.arange(int(lengths.max(initial=0))) < lengths[:, None])
        places = torch.from_numpy(sequence).to(self._device), torch.from_numpy(step).to(self._device)
        return _Part(*places, torch.from_numpy(lengths.astype(np.int64)))


def _previous(rows: Mapping[str, Tensor], sequence: Tensor, step: Tensor) -> Tensor | None:
    return rows[PREVIOUS][sequence, step] if PREVIOUS in rows else None


def priorities(errors: Tensor, sequence: Tensor, num_sequences: int) -> Tensor:
    """Return eta max + (1 - eta) mean ``[B]`` of the ``errors [n]``, absolute TD errors, of each ``sequence [n]``."""
    zeros = errors.new_zeros(num_sequences)
    highest = zeros.scatter_reduce(0, sequence, errors, "amax")
    means = zeros.scatter_reduce(0, sequence, errors, "mean", include_self=False)
    return ETA * highest + (1 - ETA) * means


class R2D2Learner(DQNLearner):
    """DQN's learner with a recurrent network and the loss on sequences."""

    def __init__(
        self,
        network: QNetworkConfig,
        config: DQNLearnerConfig,
        settings: R2D2Settings,
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        super().__init__(network, config, seed, note)

    def make_gradient(self) -> BatchGradient:
        return SequenceGradient(self, self._settings)


R2D2ConfigT = TypeVar("R2D2ConfigT", bound=R2D2Config)


class R2D2Agent(DQNAgent[R2D2ConfigT]):
    """R2D2 with one replay shard in the learner's process."""

    POLICIES = R2D2Policies
    policies: R2D2Policies

    def make_learner(self) -> DQNLearner:
        config, policies = self.config, self.policies
        settings = R2D2Settings(policies.sequences, config.h_function_epsilon if config.use_h_function else None)
        seed = derive_seed(self.seed, "learner")
        return R2D2Learner(policies.network, self.learner_config(), settings, seed, self.add_event)


class ApexR2D2Agent(ApexReplayAgent[ApexR2D2Config], R2D2Agent[ApexR2D2Config]):
    """R2D2 with many workers and sharded replay, as in Kapturowski et al. 2019."""
