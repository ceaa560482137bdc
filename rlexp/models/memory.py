"""Recurrent acting in NumPy: an LSTM's step, and what a policy remembers of the episode that each env plays.

Workers act by it without torch. ``lstm`` has the same LSTM in torch, for learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.config.keys.model import RecurrentModelConfig
from rlexp.models.action_distributions import Actions, CategoricalActions
from rlexp.models.network_config import MemoryConfig
from rlexp.sample_batch import Array

STATE_IN = "state_in"
"""The column of LSTM states ``[B, 2 H]`` before each row's observation: output and cell, zeros as an episode starts."""
STATE_OUT = "state_out"
"""The name of a network's states after its observations, in exports."""
PREVIOUS = "previous"
"""The column of a PreviousStep ``[B, P]``; there is none if P is 0."""
SEQUENCE_STARTS = "sequence_starts"
"""Whether a row is the first of a sequence, ``[B]`` bool: an LSTM goes from it to the row before the next such row."""


def memory_columns(config: MemoryConfig | None) -> tuple[str, ...]:
    """Return the columns that a learner of a network needs for its memory, if it has one."""
    if config is None:
        return ()
    return SEQUENCE_STARTS, STATE_IN, *((PREVIOUS,) if config.num_previous else ())


@dataclass(frozen=True)
class PreviousStep:
    """What a recurrent network sees of the step before an observation: the action, the reward, both or neither.

    A choice among n values is n numbers, 1 for the chosen one and 0 for the others. As an episode starts, all are 0.
    """

    actions: Actions | None
    """The actions, if it sees them."""
    has_reward: bool

    @classmethod
    def of(cls, model: RecurrentModelConfig, actions: Actions) -> PreviousStep:
        """Return what the network of ``model`` sees, whose policy chooses ``actions``."""
        return cls(actions if model.lstm_use_prev_action else None, model.lstm_use_prev_reward)

    @property
    def num_action_numbers(self) -> int:
        """Numbers A of an action."""
        if self.actions is None:
            return 0
        is_choice = isinstance(self.actions, CategoricalActions)
        return self.actions.num_inputs if is_choice else self.actions.num_inputs // 2

    @property
    def num_numbers(self) -> int:
        """Numbers P of a step: the action's, then the reward."""
        return self.num_action_numbers + self.has_reward

    def of_actions(self, taken: Array) -> Array:
        """Return the numbers ``[M, P]`` of actions ``[M, ...]``, with 0 for rewards."""
        numbers = np.zeros((len(taken), self.num_numbers), np.float32)
        flat = taken.reshape(len(taken), -1)
        if isinstance(self.actions, CategoricalActions):
            firsts = np.cumsum((0, *self.actions.sizes[:-1])) - np.array(self.actions.first)
            np.put_along_axis(numbers, flat.astype(np.int64) + firsts, 1.0, axis=1)
        elif self.actions is not None:
            numbers[:, : self.num_action_numbers] = flat
        return numbers


class NumpyLSTM:
    """One step of an LSTM for M envs (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        """Copy the weights of the ``lstm.LSTM`` that is the ``memory`` of a network."""
        joined = [weights["memory.lstm.weight_ih_l0"], weights["memory.lstm.weight_hh_l0"]]
        self._weight = np.concatenate(joined, axis=1).T.copy(order="C")
        self._bias = weights["memory.lstm.bias_ih_l0"] + weights["memory.lstm.bias_hh_l0"]
        self._size = len(self._bias) // 4

    def step(self, features: Array, previous: Array | None, states: Array) -> tuple[Array, Array]:
        """Return the outputs ``[M, H]`` and the next states ``[M, 2 H]`` for ``features [M, F]``.

        ``previous [M, P]`` has the numbers of the previous step, if it sees them.
        """
        size = self._size
        seen = [features, *([] if previous is None else [previous]), states[:, :size]]
        gates = np.concatenate(seen, axis=1) @ self._weight
        gates += self._bias
        let_in, forget, new, let_out = (gates[:, start : start + size] for start in range(0, 4 * size, size))
        following = np.empty((len(features), 2 * size), np.float32)
        outputs, cells = following[:, :size], following[:, size:]
        np.multiply(_sigmoid(forget), states[:, size:], out=cells)
        cells += _sigmoid(let_in) * np.tanh(new)
        np.multiply(_sigmoid(let_out), np.tanh(cells), out=outputs)
        return outputs, following


def _sigmoid(x: Array) -> Array:
    """Return the logistic function of ``x``, which no number overflows."""
    half = np.float32(0.5)
    sigmoid: Array = half * np.tanh(half * x) + half
    return sigmoid


class EpisodeMemory:
    """What a recurrent policy remembers of the episode of each env; owned by the policy, which may have any network.

    In each step of the envs, the policy computes with ``states`` and ``previous``, which it may keep as ``columns``,
    and calls ``acted``. Then whoever steps the envs calls ``stepped``, by the policy's ``after_step``.
    """

    def __init__(self, config: MemoryConfig, previous_step: PreviousStep) -> None:
        self.previous_step = previous_step
        self._width = 2 * config.cell_size
        self.start(0)

    def start(self, num_envs: int) -> None:
        """Begin the episodes of so many envs."""
        self.states: Array = np.zeros((num_envs, self._width), np.float32)
        """States ``[M, 2 H]`` before the next observation."""
        self._previous: Array = np.zeros((num_envs, self.previous_step.num_numbers), np.float32)

    def of(self, num_envs: int) -> EpisodeMemory:
        """Return itself; it begins the episodes of so many envs if it has the memory of another number of them."""
        if len(self.states) != num_envs:
            self.start(num_envs)
        return self

    @property
    def previous(self) -> Array | None:
        """The numbers of the previous step ``[M, P]``; None if the network sees none."""
        return self._previous if self.previous_step.num_numbers else None

    def columns(self) -> dict[str, Array]:
        """Return what the network computes the next outputs with, beside observations, as columns ``[M, ...]``."""
        return {STATE_IN: self.states, **({} if self.previous is None else {PREVIOUS: self.previous})}

    def acted(self, states: Array, actions: Array) -> None:
        """Remember the ``states [M, 2 H]`` after the observation, and the ``actions [M, ...]`` that were chosen."""
        self.states = states
        if self.previous_step.num_numbers:
            self._previous = self.previous_step.of_actions(actions)

    def stepped(self, rewards: Array, starting: Array) -> None:
        """Remember the ``rewards [M]`` of the actions; forget all of envs whose next observation starts an episode."""
        if self.previous_step.has_reward:
            self._previous[:, -1] = rewards
        if starting.any():  # other owners of these arrays keep what they were given
            keeps = ~starting[:, None]
            self.states, self._previous = self.states * keeps, self._previous * keeps

    @property
    def rewards(self) -> Array:
        """The rewards ``[M]`` of the last actions; 0 if the network sees none."""
        return self._previous[:, -1] if self.previous_step.has_reward else np.zeros(len(self.states), np.float32)

    def packed(self) -> Array:
        """Return the memory of each env as one row ``[M, 2 H + A]``, without the reward."""
        return np.concatenate([self.states, self._previous[:, : self.previous_step.num_action_numbers]], axis=1)

    def unpack(self, packed: Array, rewards: Array) -> None:
        """Continue from what ``packed`` returned, with the ``rewards [M]`` of the last actions."""
        self.start(len(packed))
        self.states = packed[:, : self._width]
        self._previous[:, : self.previous_step.num_action_numbers] = packed[:, self._width :]
        self.stepped(rewards, np.zeros(len(packed), bool))

    @property
    def packed_size(self) -> int:
        """Numbers of a row of ``packed``."""
        return self._width + self.previous_step.num_action_numbers

    def state(self) -> dict[str, Any]:
        """Return its arrays by name, for a checkpoint."""
        return {"states": self.states, "previous": self._previous}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self.states, self._previous = state["states"], state["previous"]
