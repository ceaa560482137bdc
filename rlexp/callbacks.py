"""Callbacks: the base class of the user's own hooks into training, and what each hook is given.

``config.callbacks`` names classes that derive from it. Rollout workers and evaluations call the hooks of episodes, the
process of the trial those of iterations and checkpoints. This module loads neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gymnasium as gym

Array = NDArray[Any]
Number = float | np.number[Any] | np.bool_


@dataclass(frozen=True, eq=False, kw_only=True)
class Episode:
    """One episode, from its start to its end: each of its hooks is given the same object.

    An episode is a whole one, as ``episodes_total`` counts them: of an Atari game, all lives.
    """

    worker_index: int | None
    """The rollout worker that plays it. With ``num_workers: 0`` that is 0; None in evaluations."""
    env_index: int
    """The env, among those that the worker steps together."""
    number: int
    """How many episodes this env began before."""
    is_evaluation: bool
    """Whether an evaluation plays it: its own metrics are reported below ``evaluation/custom_metrics``."""
    env: gym.Env[Any, Any] | None
    """The env itself, with its wrappers; ``env.unwrapped`` is without. None where it exists only as part of a vector
    env, such as CartPole's or Atari's."""
    metrics: dict[str, Number] = field(default_factory=dict)
    """Own metrics: what they are when ``on_episode_end`` has returned is reported. NaN: none in this episode."""
    data: dict[str, Any] = field(default_factory=dict)
    """Anything that hooks keep for later hooks of the same episode."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EpisodeStart:
    """What ``on_episode_start`` is given."""

    episode: Episode
    obs: Array
    """The first observation ``[...]``, as the agent sees it before ``observation_filter``."""
    info: dict[str, Any]
    """The info that ``reset`` returned."""

    @property
    def metrics(self) -> dict[str, Number]:
        """The own metrics of the episode."""
        return self.episode.metrics


@dataclass(frozen=True, eq=False, kw_only=True)
class _PlayedStep:
    """An env step, and the totals of its episode with it."""

    episode: Episode
    obs: Array
    """The observation after the step ``[...]``, as the agent sees it before ``observation_filter``."""
    action: Array
    """The agent's action ``[...]``."""
    reward: float
    """Never clipped."""
    terminated: bool
    """Whether the episode ended by itself with this step, as the learner sees it: for Atari games, a life."""
    truncated: bool
    """Whether the episode was cut after this step, by a time limit or ``horizon``."""
    info: dict[str, Any]
    """The info that ``step`` returned."""
    episode_return: float
    """The sum of rewards so far, this step included; at the end, as it counts for ``episode_reward_mean``."""
    length: int
    """Env steps so far, this one included; at the end, as they count for ``episode_len_mean``."""

    @property
    def metrics(self) -> dict[str, Number]:
        """The own metrics of the episode."""
        return self.episode.metrics


class EpisodeStep(_PlayedStep):
    """What ``on_episode_step`` is given: one env step; resets between two episodes are none."""


class EpisodeEnd(_PlayedStep):
    """What ``on_episode_end`` is given: the episode's last step, and its totals."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IterationEnd:
    """What ``on_iteration`` is given: the row of results of an iteration, before it is written."""

    row: Mapping[str, Any]
    """The row, with nested mappings such as ``info`` and ``custom_metrics``. It cannot be changed."""
    metrics: dict[str, Number] = field(default_factory=dict)
    """Own metrics of the iteration: each is added to the row as ``custom_metrics/NAME``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SavedCheckpoint:
    """What ``on_checkpoint`` is given."""

    path: Path
    """The folder of the checkpoint, complete, on the machine of the trial's process. Do not change what is in it."""
    row: Mapping[str, Any]
    """The row of results of its iteration. It cannot be changed."""


class Callbacks:
    """Hooks that do nothing; derive from it and write those that you need. Hooks that you do not write cost nothing.

    Each rollout worker makes an object of its own for its episodes. The process of the trial makes another one, for
    evaluations, iterations and checkpoints. ``__init__`` is given the keyword arguments of the file. What a hook
    raises ends the trial.
    """

    EPISODE_METRICS: ClassVar[tuple[str, ...]] = ()
    """The own metrics of episodes, if they are known beforehand: ``progress.csv`` has columns for them from the first
    row on, and any other name is refused, unless another class of the same file declares none. Empty: any names."""

    def on_episode_start(self, start: EpisodeStart) -> None:
        """An episode has begun."""

    def on_episode_step(self, step: EpisodeStep) -> None:
        """An env has made a step. This is called for each step of each env, so it decides how fast workers are."""

    def on_episode_end(self, end: EpisodeEnd) -> None:
        """An episode has ended; the env is not reset yet."""

    def on_iteration(self, iteration: IterationEnd) -> None:
        """An iteration has ended, with its evaluation if it has one."""

    def on_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        """A checkpoint was written."""

    def state(self) -> dict[str, Any]:
        """Return what this object must know again after ``rlexp resume``: numbers, strings, lists, dicts and arrays.

        Checkpoints have the state of the trial's object, and with ``num_workers: 0`` that of the worker's, unless
        ``sample_async`` lets it sample ahead.
        """
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned."""
