"""A world that ends for all when an action is taken that its mask does not allow, and what agents bootstrap from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from numpy.typing import NDArray
from torch import Tensor

from rlexp.agents.dqn import dense_loss, loss
from rlexp.agents.pqn.players import PQNPolicy
from rlexp.agents.sac.agent import Drawn, SACLearner
from rlexp.rollout.folds import VF_PREDS
from rlexp.sample_batch import NEW_OBS, SampleBatch

Array = NDArray[Any]
if TYPE_CHECKING:
    Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    Wrapper = VectorWrapper  # Gymnasium 1.3 has no types for it

MASKED_WORLD = "tests.lab.masks:MaskedWorld"
MASKED_VECTOR = "tests.lab.masks:MaskedVectorWorld"
TIC_TAC_TOE = "tests.lab.masks:TicTacToe"
NUM_ACTIONS, SIZES = 5, (3, 2)
IMAGE = (10, 10, 3)
LENGTHS = (4, 9)
"""Lengths of episodes, in turn; the first kind terminates with an empty mask, the second is truncated."""
MULTI_NUMBERS = sum(SIZES)


class WorldEndedError(Exception):
    """Raised for an action that is not allowed."""


class MaskedWorld(gym.Env[Any, Any]):
    """Allows some actions at random in each step, which nothing but its mask tells; the lowest of them pays 1.

    ``place`` is where the mask is: ``observation``, ``info``, or ``method``. ``see`` is what an observation is.
    """

    def __init__(self, place: str = "observation", see: str = "vector", is_multi: bool = False) -> None:
        self._place, self._see = place, see
        self._sizes = SIZES if is_multi else (NUM_ACTIONS,)
        self.action_space = MultiDiscrete(list(SIZES)) if is_multi else Discrete(NUM_ACTIONS)
        spaces: dict[str, Space[Any]] = {
            "vector": Box(-1.0, 1.0, (3,), np.float32),
            "image": Box(0, 255, IMAGE, np.uint8),
            "number": Discrete(4),
        }
        self._own_space = spaces[see]
        self.observation_space = self._own_space
        if place == "observation":
            mask = Box(0, 1, (sum(self._sizes),), np.int8)
            self.observation_space = Dict({"action_mask": mask, "observations": self._own_space})
        self._mask = np.ones(sum(self._sizes), np.int8)
        self._episode, self._step = -1, 0
        if place == "method":
            self.action_masks = lambda: self._mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        self._draw()
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        numbers, masks = np.atleast_1d(action), np.split(self._mask, np.cumsum(self._sizes)[:-1])
        if not all(mask[number] for mask, number in zip(masks, numbers, strict=True)):
            raise WorldEndedError(f"action {action} with the mask {self._mask}")
        reward = float(numbers[0] == np.flatnonzero(masks[0])[0])
        self._step += 1
        kind = self._episode % len(LENGTHS)
        has_ended = self._step == LENGTHS[kind]
        self._draw()
        if has_ended and kind == 0:
            self._mask[:] = 0
        return self._observation(), reward, has_ended and kind == 0, has_ended and kind == 1, self._info()

    def _draw(self) -> None:
        parts = []
        for size in self._sizes:
            part = (self.np_random.random(size) < 0.4).astype(np.int8)
            part[self.np_random.integers(size)] = 1
            parts.append(part)
        self._mask = np.concatenate(parts)

    def _observation(self) -> Any:
        own: Any = self.np_random.integers(4)
        if self._see == "vector":
            own = np.array([self._step / 10, self._episode % 2, 0.5], np.float32)
        elif self._see == "image":
            own = self.np_random.integers(0, 256, IMAGE, np.uint8)
        return {"action_mask": self._mask.copy(), "observations": own} if self._place == "observation" else own

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask.copy()} if self._place == "info" else {}


class MaskedVectorWorld(Wrapper):
    """MaskedWorlds that step together, as a class of vector envs that a user wrote."""

    def __init__(self, num_envs: int, place: str = "observation") -> None:
        worlds = SyncVectorEnv([lambda: MaskedWorld(place)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        super().__init__(worlds)
        if place == "method":
            self.action_masks = lambda: np.stack(worlds.call("action_masks"))

    @property
    def unwrapped(self) -> Any:
        return self


class TicTacToe(gym.Env[Any, Any]):
    """Tic-tac-toe against a player that moves at random; a move on a taken field loses. Its info has the mask."""

    LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

    def __init__(self) -> None:
        self.observation_space = Box(-1, 1, (9,), np.float32)
        self.action_space = Discrete(9)
        self._board = np.zeros(9, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._board[:] = 0
        if self.np_random.random() < 0.5:
            self._board[self.np_random.integers(9)] = -1
        return self._board.copy(), {"action_mask": self._free}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, is_over = -1.0, bool(self._board[action])
        if not is_over:
            reward, is_over = self._moved(action)
        return self._board.copy(), reward, is_over, False, {"action_mask": self._free}

    @property
    def _free(self) -> Array:
        free: Array = (self._board == 0).astype(np.int8)
        return free

    def _moved(self, action: int) -> tuple[float, bool]:
        """Return the reward of a valid move and of the answer to it, and whether the game is over."""
        self._board[action] = 1
        if self._has_line(1):
            return 1.0, True
        if self._free.any():
            self._board[self.np_random.choice(np.flatnonzero(self._free))] = -1
        return -float(self._has_line(-1)), self._has_line(-1) or not self._free.any()

    def _has_line(self, player: int) -> bool:
        return any((self._board[list(line)] == player).all() for line in self.LINES)


def watch_bootstraps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the losses of DQN, PQN and SAC fail if they use the value of an action that is not allowed.

    Returns a list that gets the number of checked rows of each call.
    """
    checked: list[int] = []
    new_rows: list[Any] = []

    def check(actions: Array, rows: Array) -> None:
        allowed = rows[:, -NUM_ACTIONS:] != 0
        assert allowed.any(axis=1).all()
        assert allowed[np.arange(len(actions)), actions].all()
        checked.append(len(actions))

    own_compute, own_next = dense_loss.DenseGradient._compute, dense_loss._LossRows.next_actions

    def compute(self: Any, batch: SampleBatch) -> Any:
        new_rows[:] = [np.asarray(batch[NEW_OBS])]
        return own_compute(self, batch)

    def next_actions(self: Any, *values: Array) -> Array:
        actions = own_next(self, *values)
        check(actions, new_rows[0])
        return actions

    def watched(own: Callable[..., Any], selector_at: int) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            check(args[selector_at].argmax(dim=1).cpu().numpy(), new_rows[0])
            return own(*args, **kwargs)

        return inner

    own_losses = loss.row_losses

    def row_losses(online: Any, target: Any, rows: Any, *args: Any) -> Any:
        new_rows[:] = [rows[NEW_OBS].cpu().numpy()]
        return own_losses(online, target, rows, *args)

    own_returned = PQNPolicy.returned

    def returned(self: Any, outputs: Array, obs: Array) -> Any:
        found = own_returned(self, outputs, obs)
        best = (outputs == found[VF_PREDS][:, None]) & (obs[:, -NUM_ACTIONS:] != 0)
        assert best.any(axis=1).all()
        checked.append(len(obs))
        return found

    own_drawn = SACLearner._drawn

    def drawn(self: Any, obs: Tensor, noise: None) -> Drawn:
        found = own_drawn(self, obs, noise)
        assert found.probabilities is not None
        assert not torch.any(found.probabilities[obs[:, -NUM_ACTIONS:] == 0])
        checked.append(len(obs))
        return found

    monkeypatch.setattr(dense_loss.DenseGradient, "_compute", compute)
    monkeypatch.setattr(dense_loss._LossRows, "next_actions", next_actions)
    monkeypatch.setattr(loss, "row_losses", row_losses)
    monkeypatch.setattr(loss, "td_errors", watched(loss.td_errors, 5))
    monkeypatch.setattr(loss, "cross_entropies", watched(loss.cross_entropies, 5))
    monkeypatch.setattr(PQNPolicy, "returned", returned)
    monkeypatch.setattr(SACLearner, "_drawn", drawn)
    return checked
