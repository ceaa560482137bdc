"""Callbacks: the base class of the user's own hooks into training, and the arguments of the hooks.

``config.callbacks`` names classes that derive from it. Rollout workers and evaluations call the hooks of episodes. The
process of the trial calls the hooks of iterations and checkpoints. This module loads neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlexp.sample_batch import Array

Number = float | np.number[Any] | np.bool_


@dataclass(frozen=True, eq=False, kw_only=True)
class Episode:
    """One episode, from its start to its end; each of its hooks gets the same object.

    An episode is a whole one, as ``episodes_total`` counts them: an Atari game with all lives.
    """

    worker_index: int | None
    """The rollout worker that plays it; 0 with ``num_workers: 0``, None in evaluations."""
    env_index: int
    """Index of the env among those that the worker steps together."""
    number: int
    """Number of episodes that this env began before."""
    is_evaluation: bool
    """Whether an evaluation plays it; its own metrics are then reported below ``evaluation/custom_metrics``."""
    env: Any
    """The env itself, with its wrappers; ``env.unwrapped`` is without. None if it exists only as part of a vector env,
    such as CartPole's or Atari's. Of several agents: PettingZoo's env."""
    agent: str | None = None
    """The name of the agent, if the env has several: each agent's part of an episode is one for the hooks."""
    metrics: dict[str, Number] = field(default_factory=dict)
    """Own metrics; their values after ``on_episode_end`` are reported. NaN: none in this episode."""
    data: dict[str, Any] = field(default_factory=dict)
    """Any data that hooks store for later hooks of the same episode."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EpisodeStart:
    """The argument of ``on_episode_start``."""

    episode: Episode
    obs: Array
    """The first observation ``[...]``, as the agent sees it before ``observation_filter``."""
    info: dict[str, Any]
    """The info of ``reset``."""

    @property
    def metrics(self) -> dict[str, Number]:
        """The own metrics of the episode."""
        return self.episode.metrics


@dataclass(frozen=True, eq=False, kw_only=True)
class _PlayedStep:
    """An env step, with the totals of its episode."""

    episode: Episode
    obs: Array
    """The observation after the step ``[...]``, as the agent sees it before ``observation_filter``."""
    action: Array
    """The agent's action ``[...]``."""
    reward: float
    """The reward, never clipped."""
    terminated: bool
    """Whether the episode ended by itself with this step, as the learner sees it: for Atari games, a life."""
    truncated: bool
    """Whether the episode was truncated after this step, by a time limit or ``horizon``."""
    info: dict[str, Any]
    """The info of ``step``."""
    episode_return: float
    """The sum of rewards so far, with this step; at the end, the value for ``episode_reward_mean``."""
    length: int
    """Env steps so far, with this one; at the end, the value for ``episode_len_mean``."""

    @property
    def metrics(self) -> dict[str, Number]:
        """The own metrics of the episode."""
        return self.episode.metrics


class EpisodeStep(_PlayedStep):
    """The argument of ``on_episode_step``: one env step. Resets between two episodes are not steps."""


class EpisodeEnd(_PlayedStep):
    """The argument of ``on_episode_end``: the episode's last step, and its totals."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IterationEnd:
    """The argument of ``on_iteration``: the row of results of an iteration, before it is written."""

    row: Mapping[str, Any]
    """The row, with nested mappings such as ``info`` and ``custom_metrics``. It cannot be changed."""
    metrics: dict[str, Number] = field(default_factory=dict)
    """Own metrics of the iteration: each is added to the row as ``custom_metrics/NAME``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SavedCheckpoint:
    """The argument of ``on_checkpoint``."""

    path: Path
    """The folder of the complete checkpoint, on the machine of the trial's process. Do not change its content."""
    row: Mapping[str, Any]
    """The row of results of its iteration. It cannot be changed."""


class Callbacks:
    """Hooks that do nothing; derive from it and write those that you need. Hooks that you do not write cost nothing.

    The check before training makes an object and drops it. Each rollout worker makes one of its own for its episodes,
    the process of the trial another one, for evaluations, iterations and checkpoints. ``__init__`` gets the keyword
    arguments of the file. An exception in a hook ends the trial.
    """

    EPISODE_METRICS: ClassVar[tuple[str, ...]] = ()
    """The own metrics of episodes, if they are known beforehand: ``progress.csv`` has columns for them from the first
    row on, and any other name is refused, unless another class of the same file declares none. Empty: any names."""

    def on_episode_start(self, start: EpisodeStart) -> None:
        """An episode has begun."""

    def on_episode_step(self, step: EpisodeStep) -> None:
        """Called for each step of each env, so it decides how fast workers are."""

    def on_episode_end(self, end: EpisodeEnd) -> None:
        """An episode has ended; the env is not reset yet."""

    def on_iteration(self, iteration: IterationEnd) -> None:
        """An iteration has ended, with its evaluation if it has one."""

    def on_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        """A checkpoint was written."""

    def state(self) -> dict[str, Any]:
        """Return the state that ``rlexp resume`` must restore: numbers, strings, lists, dicts and arrays.

        Checkpoints have the state of the trial's object, and with ``num_workers: 0`` the state of the worker's object,
        unless ``sample_async`` lets it sample ahead.
        """
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned."""
