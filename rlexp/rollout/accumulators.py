"""Turns a worker's fragments into rows: as soon as they are complete, or whole episodes only (``batch_mode``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rlexp.errors import TrialError
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import Array, SampleBatch

MAX_WAITING_BYTES = 2**31
"""Observations that may wait in a worker."""


class Fold(Protocol):
    """Computes an algorithm's rows from a stream of steps: n-step transitions, advantages. Has no state."""

    @property
    def lookahead(self) -> int:
        """Steps of the stream after the last start that rows need, unless their episodes end before.

        A row may depend on all steps up to there. If it depends on more than the ``lookahead`` steps after its own
        start, as an advantage does, its numbers depend on where the stream was cut.
        """
        ...

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return the rows that start at steps ``0 .. num_starts - 1`` of every env, in time-major order.

        Steps that are not ``valid`` have no row, and nothing behind step ``num_starts + lookahead`` matters.
        """
        ...


class Accumulator(Protocol):
    """Holds the steps that wait until rows can be folded from them; owned by one worker."""

    def push(self, fragment: Fragment) -> SampleBatch | None:
        """Return the rows that may be sent now; None: more fragments are needed first."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the steps that wait."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, as a new accumulator."""
        ...


class FragmentAccumulator:
    """An Accumulator that returns each row as soon as it is complete.

    The steps at a fragment's end whose rows need later ones wait for the next fragment, so that no row is
    folded short at a border, none is lost and none appears twice.
    """

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._waiting: Fragment | None = None

    def push(self, fragment: Fragment) -> SampleBatch:
        """Return at most ``T * M`` rows (none at first, if the fold looks further ahead than T steps)."""
        if self._fold.lookahead == 0:
            return self._fold.rows(fragment, fragment.num_steps)
        stream = fragment if self._waiting is None else self._waiting.followed_by(fragment)
        num_starts = max(stream.num_steps - self._fold.lookahead, 0)
        self._waiting = stream.since(num_starts)
        return self._fold.rows(stream, num_starts)

    def state(self) -> dict[str, Any]:
        return {"waiting": None if self._waiting is None else self._waiting.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._waiting = None if state["waiting"] is None else Fragment(**state["waiting"])


class EpisodeAccumulator:
    """An Accumulator that returns the rows of whole episodes.

    The stream of all envs waits together and each env has its own cut, behind its last ended episode.
    The steps before it are sent as soon as they are ``min_steps`` of all envs together; the rest waits,
    at most an episode per env (which ``horizon`` bounds) and a fragment. Every episode is sent once.
    """

    def __init__(self, fold: Fold, min_steps: int) -> None:
        self._fold = fold
        self._min_steps = min_steps
        self._waiting: list[Fragment] = []
        self._waiting_bytes = 0
        self._finished_steps = 0
        self._open_steps: Array = np.zeros(1, np.int64)

    def push(self, fragment: Fragment) -> SampleBatch | None:
        """Return the rows of all ended episodes, or None while they are fewer than ``min_steps`` steps.

        Raises TrialError when more than MAX_WAITING_BYTES wait.
        """
        self._waiting.append(fragment)
        self._count(fragment)
        batch = self._send() if self._finished_steps >= self._min_steps else None
        refuse_unended_episodes(self._waiting_bytes)
        return batch

    def state(self) -> dict[str, Any]:
        return {"waiting": [fragment.state() for fragment in self._waiting]}

    def load(self, state: Mapping[str, Any]) -> None:
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
        return self._fold.rows(sent, int(per_env.max()))


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
    """Return which steps ``[T, M]`` are up to their env's last end of an episode, and which envs ``[M]`` have one."""
    ends = fragment.terminated | fragment.truncated
    finished: Array = np.logical_or.accumulate(ends[::-1])[::-1]
    return finished, finished[0]
