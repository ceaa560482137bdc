"""Episodes as they are reported: whole, undiscounted and unclipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlexp.envs import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.sample_batch import Array


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended in a fragment; rows belong together."""

    returns: Array
    """Undiscounted, unclipped returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""
    reported: Array
    """Whether they count for the reported returns ``[E]``; episodes that explore much do not."""
    own_metrics: Mapping[str, Array] = field(default_factory=dict)
    """The metrics that the user's callbacks gave those that are reported, by name; values of those that have one."""

    @staticmethod
    def join(parts: Sequence[Episodes]) -> Episodes:
        """Return the episodes of all parts, in order; none where there are no parts."""
        if not parts:
            return Episodes(np.empty(0), np.empty(0, np.int64), np.empty(0, bool))
        return Episodes(
            np.concatenate([part.returns for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.reported for part in parts]),
            join_metrics([part.own_metrics for part in parts]),
        )


def join_metrics(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the values of all parts by name, in order."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([part[name] for part in parts if name in part]) for name in names}


@dataclass(frozen=True)
class Finished:
    """What one step of a vector env finished; rows belong together."""

    envs: Array
    """Indices ``[E]`` of the envs."""
    returns: Array
    """Returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""


class EpisodeCounter:
    """Adds up the running episodes of ``M`` envs, which reset on the step after an episode's end.

    Where an env's episodes are only parts of a game (lives of an Atari game), its infos report when a game
    is over, its score and its length: then whole games are counted.
    """

    def __init__(self, num_envs: int) -> None:
        self.resetting = np.zeros(num_envs, bool)
        """Whether each env's next step is no env step but its reset ``[M]``."""
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def add(self, rewards: Array, ended: Array, infos: Mapping[str, Any]) -> Finished | None:
        """Count one step of every env, its rewards ``[M]`` and ends ``[M]``; None where it finished nothing."""
        self._returns += rewards
        self._lengths += ~self.resetting
        self.resetting = ended
        if GAME_OVER in infos:
            return _finished(infos[GAME_OVER], infos[GAME_SCORE], infos[GAME_STEPS])
        finished = _finished(ended, self._returns, self._lengths)
        if finished is not None:
            self._returns[finished.envs] = 0.0
            self._lengths[finished.envs] = 0
        return finished

    def state(self) -> dict[str, Array]:
        """Return how far the running episodes are."""
        return {"resetting": self.resetting, "returns": self._returns, "lengths": self._lengths}

    def load(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state`` returned, which it owns from now on."""
        self.resetting, self._returns, self._lengths = state["resetting"], state["returns"], state["lengths"]


def _finished(over: Array, returns: Array, lengths: Array) -> Finished | None:
    if not np.count_nonzero(over):  # every step asks; ``over.any()`` takes six times as long
        return None
    envs = over.nonzero()[0]
    return Finished(envs, returns[envs], lengths[envs])
