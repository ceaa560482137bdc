"""Whole episodes (``batch_mode: complete_episodes``): steps wait in the worker until their episode has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlexp.errors import TrialError
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.n_step import n_step_transitions
from rlexp.sample_batch import Array, SampleBatch

MAX_WAITING_BYTES = 2**31
"""Observations that may wait in a worker."""


class EpisodeAccumulator:
    """Turns fragments into the transitions of whole episodes; owned by one worker.

    The stream of all envs waits together and each env has its own cut, behind its last ended episode.
    What lies before it is sent as soon as it is ``min_steps`` steps of all envs together; the rest waits
    on, at most an episode per env (which ``horizon`` bounds) and a fragment. Every episode is sent once.
    """

    def __init__(self, n_step: int, gamma: float, min_steps: int) -> None:
        self._n_step = n_step
        self._gamma = gamma
        self._min_steps = min_steps
        self._waiting: list[Fragment] = []
        self._waiting_bytes = 0
        self._finished_steps = 0
        self._open_steps: Array = np.zeros(1, np.int64)

    def push(self, fragment: Fragment) -> SampleBatch | None:
        """Return the transitions of all ended episodes, or None while they are fewer than ``min_steps`` steps.

        Raises TrialError when what waits grows beyond MAX_WAITING_BYTES.
        """
        self._waiting.append(fragment)
        self._count(fragment)
        batch = self._send() if self._finished_steps >= self._min_steps else None
        refuse_unended_episodes(self._waiting_bytes)
        return batch

    def state(self) -> dict[str, Any]:
        """Return the steps that wait."""
        return {"waiting": [fragment.state() for fragment in self._waiting]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned, as a new accumulator."""
        self._waiting = [Fragment(**fragment) for fragment in state["waiting"]]
        for fragment in self._waiting:
            self._count(fragment)

    def _count(self, fragment: Fragment) -> None:
        finished, ended = before_last_end(fragment)
        num_finished = np.count_nonzero(fragment.valid & finished, axis=0)
        num_open = np.count_nonzero(fragment.valid & ~finished, axis=0)
        self._finished_steps += int(num_finished.sum() + np.where(ended, self._open_steps, 0).sum())
        self._open_steps = np.where(ended, 0, self._open_steps) + num_open
        self._waiting_bytes += fragment.obs.nbytes

    def _send(self) -> SampleBatch:
        stream = Fragment.join(self._waiting)
        finished, _ = before_last_end(stream)
        per_env = np.count_nonzero(finished, axis=0)
        sent = replace(stream, valid=stream.valid & finished)
        rest = replace(stream, valid=stream.valid & ~finished).since(int(per_env.min()))
        self._waiting, self._waiting_bytes, self._finished_steps = [rest], rest.obs.nbytes, 0
        return n_step_transitions(sent, int(per_env.max()), self._n_step, self._gamma)


def refuse_unended_episodes(num_bytes: int) -> None:
    """Raise TrialError where observations that wait for the end of their episode take too many bytes."""
    refuse_too_much_waiting(
        num_bytes,
        "of episodes that have not ended (batch_mode: complete_episodes)",
        "set horizon, lower num_envs_per_worker, or use batch_mode: truncate_episodes",
    )


def refuse_too_much_waiting(num_bytes: int, what: str, hint: str) -> None:
    """Raise TrialError where observations that a worker has not sent yet take more than MAX_WAITING_BYTES."""
    if num_bytes > MAX_WAITING_BYTES:
        raise TrialError(f"a rollout worker holds {num_bytes / 1e9:.1f} GB of observations {what}", hint)


def before_last_end(fragment: Fragment) -> tuple[Array, Array]:
    """Return which steps ``[T, M]`` lie up to their env's last end of an episode, and which envs ``[M]`` have one."""
    ends = fragment.terminated | fragment.truncated
    finished: Array = np.logical_or.accumulate(ends[::-1])[::-1]
    return finished, finished[0]
