"""The graph of an exported policy: from observations to the actions that the env takes, as evaluations play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.agents.checkpoint import WEIGHTS, LoadedCheckpoint, RestoredPolicy
from rlexp.agents.policies import Exportable
from rlexp.envs.action_masks import MaskedSpace
from rlexp.envs.make import action_grid
from rlexp.envs.native_vectors import ACTION_MASK
from rlexp.envs.registry import EnvConfig
from rlexp.envs.spaces import ActionBounds, is_continuous
from rlexp.models.memory import STATE_IN
from rlexp.rollout.filters import LARGEST_DEVIATION, SMALLEST_SCALE, Moments
from rlexp.sample_batch import Array

INPUT: Final = "obs"
"""The name of the graph's input."""
REWARD: Final = "reward"
"""The name of its input of the rewards of the actions before, if it sees them."""


@dataclass(frozen=True)
class RecurrentInputs:
    """Observations, and what a recurrent policy remembers as it sees each of them."""

    obs: Array
    """``[N, ...]``."""
    states: Array
    """``[N, S]``, as EpisodeMemory packs them."""
    rewards: Array
    """``[N]``, of the actions before."""

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, rows: slice) -> RecurrentInputs:
        return RecurrentInputs(self.obs[rows], self.states[rows], self.rewards[rows])


Observations = Array | RecurrentInputs
"""What a policy acts on; only recurrent ones remember something."""


class _Standardised(nn.Module):
    """The observation filter of evaluations, ``Moments.standardise``; in float64 as there."""

    mean: Tensor
    scale: Tensor

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(moments.mean))
        self.register_buffer("scale", torch.tensor(moments.deviation + SMALLEST_SCALE))

    def forward(self, obs: Tensor) -> Tensor:
        if obs.ndim == 2 and obs.shape[1] > len(self.mean):  # as in Moments.standardise: an action mask
            mask = obs[:, len(self.mean) :].to(torch.float32)
            return torch.cat([self.forward(obs[:, : len(self.mean)]), mask], dim=1)
        standardised = (obs.to(torch.float64) - self.mean) / self.scale
        return standardised.clamp(-LARGEST_DEVIATION, LARGEST_DEVIATION).to(torch.float32)


class _GridPoints(nn.Module):
    """The env's action for each action number."""

    grid: Tensor

    def __init__(self, grid: Array) -> None:
        super().__init__()
        self.register_buffer("grid", torch.tensor(grid))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.grid[numbers]


class _WithinBounds(nn.Module):
    """Continuous actions clipped to the bounds of the env, ``ActionBounds.bounded``; in float64 as there."""

    low: Tensor
    high: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, bounds: ActionBounds) -> None:
        super().__init__()
        for name in ("low", "high", "scale", "shift"):
            self.register_buffer(name, torch.tensor(getattr(bounds, name)))
        self._dtype = torch_dtype(bounds.dtype)

    def forward(self, actions: Tensor) -> Tensor:
        moved = actions.to(torch.float64) * self.scale + self.shift
        return torch.minimum(torch.maximum(moved, self.low), self.high).to(self._dtype)


@dataclass(frozen=True)
class EnvActions:
    """Maps a policy's actions to the env's actions; without grid and bounds, they are the same."""

    grid: Array | None = None
    """The env's action ``[A, *shape]`` for each action number."""
    bounds: ActionBounds | None = None

    @staticmethod
    def of(config: EnvConfig, restored: RestoredPolicy) -> EnvActions:
        """Return the mapping for the env of ``config``."""
        if config.discretize_actions is not None:
            return EnvActions(grid=action_grid(config))
        space = restored.policies.action_space
        if config.continuous_actions is None or not is_continuous(space):
            return EnvActions()
        return EnvActions(bounds=ActionBounds.of(space, config.continuous_actions))

    def taken(self, actions: Array) -> Array:
        """Return the env's actions ``[B, ...]`` for the policy's ``actions [B, ...]``."""
        if self.grid is not None:
            points: Array = self.grid[actions]
            return points
        return actions if self.bounds is None else self.bounds.bounded(actions)

    def as_module(self) -> nn.Module:
        """Return ``taken`` as a torch module."""
        if self.grid is not None:
            return _GridPoints(self.grid)
        return nn.Identity() if self.bounds is None else _WithinBounds(self.bounds)


class PolicyGraph(nn.Module):
    """Maps observations ``[B, ...]`` to the env's actions ``[B, ...]`` and the outputs that decide them."""

    def __init__(self, network: nn.Module, moments: Moments | None, env_actions: EnvActions) -> None:
        super().__init__()
        # A filter without observations leaves its input unchanged.
        self.standardised = _Standardised(moments) if moments is not None and moments.count else nn.Identity()
        self.network = network
        self.env_actions = env_actions.as_module()

    def forward(self, obs: Tensor, *memory: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, and then the outputs; a recurrent network also sees its ``memory``."""
        actions, *outputs = self.network(self.standardised(obs), *memory)
        return self.env_actions(actions), *outputs


class MaskedGraph(nn.Module):
    """Maps observations ``[B, ...]`` and their action masks ``[B, A]`` to what a PolicyGraph returns for their rows."""

    def __init__(self, graph: PolicyGraph) -> None:
        super().__init__()
        self.of_rows = graph

    def forward(self, obs: Tensor, action_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, and then the outputs."""
        outputs: tuple[Tensor, ...] = self.of_rows(torch.cat([obs.flatten(1), action_mask.to(obs.dtype)], dim=1))
        return outputs


class RecurrentGraph(nn.Module):
    """Maps the inputs of a recurrent policy to what a PolicyGraph returns, with the next states at the end.

    They are observations, action masks if there are any, states, and rewards if the network sees them.
    """

    def __init__(self, graph: PolicyGraph, has_masks: bool) -> None:
        super().__init__()
        self.of_rows = graph
        self._has_masks = has_masks

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, the outputs, and the states after them."""
        obs, *others = inputs
        if self._has_masks:
            obs = torch.cat([obs.flatten(1), others.pop(0).to(obs.dtype)], dim=1)
        outputs: tuple[Tensor, ...] = self.of_rows(obs, *others)
        return outputs


@dataclass(frozen=True)
class GreedyPolicy:
    """A checkpoint's policy as exported, and as evaluations play it."""

    restored: RestoredPolicy
    exportable: Exportable
    env_actions: EnvActions

    @staticmethod
    def of(loaded: LoadedCheckpoint) -> GreedyPolicy:
        """Return the policy of a checkpoint; raises CheckpointError, and UsageError if it cannot be exported."""
        restored = loaded.policy()
        exportable = restored.policies.exportable(restored.policy, loaded.checkpoint.arrays[WEIGHTS])
        return GreedyPolicy(restored, exportable, EnvActions.of(loaded.env_config, restored))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return ("actions", *self.exportable.output_names)

    @property
    def chooses_numbers(self) -> bool:
        """Whether actions are chosen from a finite set."""
        return not is_continuous(self.restored.policies.action_space)

    def graph(self) -> PolicyGraph | MaskedGraph | RecurrentGraph:
        """Return the policy as one torch module, which takes ``inputs_of`` observations."""
        moments = self.restored.filters.of_evaluations()
        graph = PolicyGraph(self.exportable.network, moments, self.env_actions).eval()
        has_masks = self.restored.policies.masking is not None
        if self.exportable.memory is not None:
            return RecurrentGraph(graph, has_masks).eval()
        return MaskedGraph(graph).eval() if has_masks else graph

    def example(self, num_rows: int) -> dict[str, Array]:
        """Return the graph's inputs for observations ``[num_rows, ...]`` of zeros, of the type that the env gives."""
        space = self.restored.policies.observation_space
        obs, memory = np.zeros((num_rows, *(space.shape or ())), space.dtype), self.exportable.memory
        if memory is None:
            return self.inputs_of(obs)
        zeros = np.zeros((num_rows, memory.packed_size), np.float32), np.zeros(num_rows, np.float32)
        return self.inputs_of(RecurrentInputs(obs, *zeros))

    def inputs_of(self, obs: Observations) -> dict[str, Array]:
        """Return the inputs of the graph for ``obs [B, ...]``, by name: action masks have an input of their own."""
        space = self.restored.policies.observation_space
        if isinstance(obs, RecurrentInputs):
            assert self.exportable.memory is not None
            has_reward = self.exportable.memory.previous_step.has_reward
            return {
                **self.inputs_of(obs.obs),
                STATE_IN: obs.states,
                **({REWARD: obs.rewards.astype(np.float32)} if has_reward else {}),
            }
        if not isinstance(space, MaskedSpace):
            return {INPUT: obs}
        observations, allowed = space.parts(obs)
        return {INPUT: observations, ACTION_MASK: allowed.astype(np.int8)}

    def played_actions(self, obs: Observations) -> Array:
        """Return the env's actions ``[B, ...]`` in evaluations, for ``obs [B, ...]``."""
        player = self.restored.filters.applied_to(self.restored.policy)
        return self.env_actions.taken(player.compute_actions(self._seen(obs)))

    def outputs(self, obs: Observations) -> tuple[Array, ...]:
        """Return the outputs that decide exported actions."""
        moments, seen = self.restored.filters.of_evaluations(), self._seen(obs)
        return self.exportable.outputs(seen if moments is None else moments.standardise(seen))

    def _seen(self, obs: Observations) -> Array:
        """Return the observations alone; the policy's memory goes on from what is remembered."""
        if not isinstance(obs, RecurrentInputs):
            return obs
        assert self.exportable.memory is not None
        self.exportable.memory.unpack(obs.states, obs.rewards)
        return obs.obs

    def actions_by(self, outputs: Array) -> Array:
        """Return the env's actions ``[B, ...]`` for ``outputs``, the first of the graph's arrays."""
        return self.env_actions.taken(self.exportable.choose(outputs))


def torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    """Return the torch dtype of a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype
