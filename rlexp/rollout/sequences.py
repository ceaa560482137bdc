"""Part of stage 1 of the data path: turns a worker's steps into sequences, for a network with a memory and replay.

A row is a sequence of steps of one episode, with the state that the network had before the first of them (Kapturowski
et al. 2019, section 2.3). All rows have the same form, so replay stores and draws them as any other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlexp.config.keys.common import ReplayNeeds
from rlexp.models.memory import STATE_IN
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import (
    ACTIONS,
    DISCOUNTS,
    OBS,
    REWARDS,
    Array,
    SampleBatch,
    n_step_returns,
    side_by_side,
)

NUM_FOLDED = "num_folded"
"""The number of steps ``[B, L]`` in each n-step return; 0 after the end of a sequence that its episode cut short."""
NUM_BURNED = "num_burned"
"""The number of observations ``[B]`` of the burn-in: fewer than others have only at the start of an episode."""


class SequencePlace(NamedTuple):
    """The steps of a sequence in a stream."""

    env: int
    begin: int
    """The first step of the burn-in."""
    first: int
    """The first step that is learned."""
    stop: int
    """The step after the last one that is learned."""


@dataclass(frozen=True)
class ReplaySequences:
    """A Fold whose rows are sequences; each step of an episode is learned in exactly one of them.

    A sequence has the observations of up to ``burn_in`` earlier steps of its episode, from which the network only
    computes its state, and ``length`` steps that are learned, fewer at the end of the episode.
    """

    length: int
    burn_in: int
    n_step: int
    gamma: float
    stores_states: bool = True
    """Whether rows have STATE_IN; without, their networks start from the state 0."""

    @classmethod
    def of(cls, replay: ReplayNeeds, gamma: float) -> ReplaySequences:
        """Return the form of the rows of an agent whose replay has sequences."""
        needs = replay.sequences
        assert needs is not None
        return cls(needs.length, needs.burn_in, replay.n_step, gamma, needs.stores_states)

    @property
    def lookahead(self) -> int:
        return self.n_step - 1

    @property
    def num_obs(self) -> int:
        """Observations of a row: of the burn-in, of the learned steps, and the last ones to bootstrap from."""
        return self.burn_in + self.length + self.n_step

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return the sequences of whole episodes: of env 0, then of env 1, and so on."""
        places, _ = self.complete(stream, np.zeros(stream.valid.shape[1], np.intp))
        return self.at(stream, places)

    def complete(self, stream: Fragment, next_steps: Array) -> tuple[list[SequencePlace], Array]:
        """Return the sequences whose steps are all in ``stream``, and each env's first valid step after them ``[M]``.

        That is the number of steps if an env has none. ``next_steps [M]`` are the first that no earlier sequence has.
        """
        runs = _runs_of(stream)
        places = [place for env, step in enumerate(next_steps.tolist()) for place in self._of_env(env, runs, step)]
        following = next_steps.copy()
        for place in places:
            following[place.env] = place.stop
        return places, runs.valid_from[following, np.arange(len(following))]

    def at(self, stream: Fragment, places: list[SequencePlace]) -> SampleBatch:
        """Return the sequences at ``places`` as rows ``[B]``.

        OBS has ``num_obs`` observations side by side along its last axis. The burn-in comes first: NUM_BURNED, padded
        to ``burn_in``. The learned steps and the steps after them follow, padded. Padding repeats an observation, which
        takes no memory for frames. ACTIONS, REWARDS, DISCOUNTS and NUM_FOLDED ``[B, L]`` are of the learned steps:
        n-step returns, and the discounts of the values NUM_FOLDED steps later, as in ``NStep``. STATE_IN is from the
        first observation; other outputs are ``[B, num_obs, ...]``.
        """
        env, begin, first, stop = np.array(places, np.intp).reshape(-1, 4).T
        returns, folded, bootstraps = n_step_returns(stream, stream.num_steps, self.n_step, self.gamma)
        learned = first[:, None] + np.arange(self.length)
        steps, envs = np.minimum(learned, stop[:, None] - 1), env[:, None]
        num_folded = np.where(learned < stop[:, None], folded[steps, envs], 0)
        seen = self._seen_steps(begin, first, stop - 1 + folded[stop - 1, env])
        columns = {
            OBS: side_by_side(stream.obs[seen, envs]),
            ACTIONS: stream.actions[steps, envs],
            REWARDS: returns[steps, envs],
            DISCOUNTS: np.where(bootstraps[steps, envs], self.gamma**num_folded, 0.0).astype(np.float32),
            NUM_FOLDED: num_folded.astype(np.int32),
            NUM_BURNED: (first - begin).astype(np.int32),
        }
        for name, output in stream.outputs.items():
            if name != STATE_IN:
                columns[name] = output[seen, envs]
            elif self.stores_states:
                columns[name] = output[begin, env]
        return SampleBatch(columns)

    def _seen_steps(self, begin: Array, first: Array, last: Array) -> Array:
        """Return the steps ``[B, num_obs]`` of the observations of rows up to the steps ``last [B]``."""
        burned = np.minimum(begin[:, None] + np.arange(self.burn_in), np.maximum(first - 1, begin)[:, None])
        learned = np.minimum(first[:, None] + np.arange(self.length + self.n_step), last[:, None])
        return np.concatenate([burned, learned], axis=1)

    def _of_env(self, env: int, runs: _Runs, step: int) -> Iterator[SequencePlace]:
        """Yield the complete sequences of an env from ``step`` on."""
        num_steps = len(runs.begins)
        while (first := int(runs.valid_from[step, env])) < num_steps:
            end = int(runs.ends[first, env])
            step = min(first + self.length, end + 1)
            needed = step + self.lookahead
            if (needed if end == num_steps else min(needed, end + 1)) > num_steps:
                return
            yield SequencePlace(env, max(first - self.burn_in, int(runs.begins[first, env])), first, step)


class _Runs(NamedTuple):
    """Three steps for each step of a stream of T steps, ``[T, M]``; the last two are T after it, ``[T + 1, M]``."""

    begins: Array
    """The first step of its episode in the stream."""
    ends: Array
    """The last step of its episode; T if the stream ends before."""
    valid_from: Array
    """The step itself, or the next one that is valid; T if there is none."""


def _runs_of(stream: Fragment) -> _Runs:
    valid, num_steps = stream.valid, stream.num_steps
    numbers, none = np.arange(num_steps)[:, None], np.full((1, valid.shape[1]), num_steps)
    is_first = valid.copy()
    is_first[1:] &= ~valid[:-1]  # between two episodes is a reset
    ends, valid_from = (
        np.minimum.accumulate(np.append(np.where(there, numbers, num_steps), none, axis=0)[::-1])[::-1]
        for there in (stream.terminated | stream.truncated, valid)
    )
    return _Runs(np.maximum.accumulate(np.where(is_first, numbers, 0)), ends, valid_from)


class SequenceAccumulator:
    """An Accumulator that returns each sequence as soon as it is complete; steps wait with their burn-in."""

    def __init__(self, fold: ReplaySequences) -> None:
        self._fold = fold
        self._waiting: Fragment | None = None
        self._next_steps: Array = np.empty(0, np.intp)

    def push(self, fragment: Fragment) -> SampleBatch:
        """Return the sequences that end in ``fragment``, if any."""
        if self._waiting is None:
            stream, next_steps = fragment, np.zeros(fragment.valid.shape[1], np.intp)
        else:
            stream, next_steps = Fragment.join([self._waiting, fragment]), self._next_steps
        places, next_steps = self._fold.complete(stream, next_steps)
        kept = max(int(next_steps.min()) - self._fold.burn_in, 0)
        self._waiting, self._next_steps = stream.since(kept), next_steps - kept
        return self._fold.at(stream, places)

    def state(self) -> dict[str, Any]:
        waiting = None if self._waiting is None else self._waiting.state()
        return {"waiting": waiting, "next_steps": self._next_steps}

    def load(self, state: Mapping[str, Any]) -> None:
        self._waiting = None if state["waiting"] is None else Fragment(**state["waiting"])
        self._next_steps = np.asarray(state["next_steps"], np.intp)
