"""Part of stage 1 of the data path: turns a worker's fragments into rows.

Rows are made as soon as they are complete, or of whole episodes only (``batch_mode``). An accumulator decides when rows
are made. A fold decides what they are: n-step transitions for agents with Q-values, or advantages for agents that learn
a policy and a value function from their newest steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from rlexp.models.memory import SEQUENCE_STARTS
from rlexp.rollout.fragment import Fragment, refuse_too_much_waiting
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch, n_step_returns, new


class Fold(Protocol):
    """Computes an algorithm's rows from a stream of steps: n-step transitions, advantages. Has no state."""

    @property
    def lookahead(self) -> int:
        """Number of steps that rows need after the last start, unless their episodes end before.

        A row may depend on all steps up to there. If it depends on more than the ``lookahead`` steps after its own
        start, as an advantage does, its numbers depend on where the stream was cut.
        """

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return the rows that start at steps ``0 .. num_starts - 1`` of every env, in time-major order.

        Steps that are not ``valid`` have no row. Steps after ``num_starts + lookahead`` are not read.
        """


class Accumulator(Protocol):
    """Holds the steps that wait until a fold can compute rows from them; owned by one worker."""

    def push(self, fragment: Fragment) -> SampleBatch | None:
        """Return the rows that may be sent now; None if more fragments are needed first."""

    def state(self) -> dict[str, Any]:
        """Return the steps that wait."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, as a new accumulator."""


class FragmentAccumulator:
    """An Accumulator that returns each row as soon as it is complete.

    Steps at the end of a fragment whose rows need later steps wait for the next fragment. So no n-step return is
    shortened at a border, and each row appears exactly once.
    """

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._waiting: Fragment | None = None

    def push(self, fragment: Fragment) -> SampleBatch:
        """Return at most ``T * M`` rows (none at first, if the fold looks further ahead than T steps)."""
        if self._fold.lookahead == 0:
            return self._fold.rows(fragment, fragment.num_steps)
        stream = fragment if self._waiting is None else Fragment.join([self._waiting, fragment])
        num_starts = max(stream.num_steps - self._fold.lookahead, 0)
        self._waiting = stream.since(num_starts)
        return self._fold.rows(stream, num_starts)

    def state(self) -> dict[str, Any]:
        return {"waiting": None if self._waiting is None else self._waiting.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._waiting = None if state["waiting"] is None else Fragment(**state["waiting"])


class EpisodeAccumulator:
    """An Accumulator that returns the rows of whole episodes.

    The steps of all envs wait together. Each env has its own cut, right after its last ended episode. The steps before
    it are sent as soon as they are ``min_steps`` of all envs together; the rest waits, at most an episode per env
    (which ``horizon`` bounds) and a fragment. Every episode is sent once.
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
        refuse_too_much_waiting(self._waiting_bytes, whole_episodes=True)
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
        self._waiting_bytes += fragment.nbytes

    def _send(self) -> SampleBatch:
        stream = Fragment.join(self._waiting)
        finished, _ = before_last_end(stream)
        num_starts = int(np.count_nonzero(finished, axis=0).max())
        is_open = stream.valid & ~finished
        num_over = int(np.append(is_open.any(axis=1), True).argmax())  # an agent that never comes holds back nothing
        rest = replace(stream, valid=is_open).since(num_over)
        self._waiting, self._waiting_bytes, self._finished_steps = [rest], rest.nbytes, 0
        return self._fold.rows(replace(stream, valid=stream.valid & finished), num_starts)


def before_last_end(fragment: Fragment) -> tuple[Array, Array]:
    """Return which steps ``[T, M]`` are up to their env's last end of an episode, and which envs ``[M]`` have one."""
    ends = fragment.terminated | fragment.truncated
    finished: Array = np.logical_or.accumulate(ends[::-1])[::-1]
    have_ends: Array = np.logical_or.reduce(ends, axis=0)
    return finished, have_ends


@dataclass(frozen=True)
class NStep:
    """A Fold that sums the rewards of up to ``n_step`` steps; the learner bootstraps from the last step."""

    n_step: int
    gamma: float

    @property
    def lookahead(self) -> int:
        return self.n_step - 1

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return one row for each valid step ``t < num_starts``.

        A row of m <= n steps (fewer if the episode ends) has REWARDS = sum_{k<m} gamma^k r_{t+k}, NEW_OBS = the
        observation after step t + m - 1, and DISCOUNTS = gamma^m, or 0 where the episode terminated: the loss
        bootstraps with ``REWARDS + DISCOUNTS * q(NEW_OBS)``. Truncation bootstraps (Pardo et al. 2018); the n-step
        return is equation 2 of Horgan et al. (2018) with the true number of steps. Each output of the policy is a
        column under its name for OBS, and under ``new(name)`` for NEW_OBS.
        """
        returns, num_folded, bootstraps = n_step_returns(stream, num_starts, self.n_step, self.gamma)
        if self._is_unbroken(stream, num_starts):
            return self._unbroken_rows(stream, returns)
        steps, envs = np.nonzero(stream.valid[:num_starts])
        folded = num_folded[steps, envs]
        ends = steps + folded
        columns = {
            OBS: stream.obs[steps, envs],
            ACTIONS: stream.actions[steps, envs],
            REWARDS: returns[steps, envs],
            DISCOUNTS: np.where(bootstraps[steps, envs], self.gamma**folded, 0.0).astype(np.float32),
            NEW_OBS: stream.obs[ends, envs],
        }
        for name, output in stream.outputs.items():
            columns |= {name: output[steps, envs], new(name): output[ends, envs]}
        return SampleBatch(columns)

    def _is_unbroken(self, stream: Fragment, num_starts: int) -> bool:
        """Return whether each of the first steps has a row of ``n_step`` steps without an episode's end."""
        if num_starts == 0 or num_starts + self.lookahead > stream.num_steps:
            return False
        if np.count_nonzero(stream.terminated) or np.count_nonzero(stream.truncated):
            return False
        return bool(np.count_nonzero(stream.valid[:num_starts]) == num_starts * stream.valid.shape[1])

    def _unbroken_rows(self, stream: Fragment, returns: Array) -> SampleBatch:
        """Return what ``rows`` returns for unbroken steps, as views of the stream instead of copies."""
        num_starts, count = len(returns), returns.size

        def starts(column: Array, first: int = 0) -> Array:
            return column[first : first + num_starts].reshape(count, *column.shape[2:])

        columns = {
            OBS: starts(stream.obs),
            ACTIONS: starts(stream.actions),
            REWARDS: returns.reshape(count),
            DISCOUNTS: np.full(count, self.gamma**self.n_step, np.float32),
            NEW_OBS: starts(stream.obs, self.n_step),
        }
        for name, output in stream.outputs.items():
            columns |= {name: starts(output), new(name): starts(output, self.n_step)}
        return SampleBatch(columns)


def sequence_starts(envs: Array, steps: Array, max_seq_len: int) -> Array:
    """Return SEQUENCE_STARTS ``[B]`` of rows that are ordered by ``envs [B]``, and for each env by ``steps [B]``.

    A sequence is at most ``max_seq_len`` steps of one env without a gap. Between two episodes there is a gap: the
    step that resets an env has no row.
    """
    follows = np.zeros(len(steps), bool)
    follows[1:] = (envs[1:] == envs[:-1]) & (steps[1:] == steps[:-1] + 1)
    rows = np.arange(len(steps))
    first = np.maximum.accumulate(np.where(follows, 0, rows))
    starts: Array = (rows - first) % max_seq_len == 0
    return starts


DIST_INPUTS = "dist_inputs"
"""The policy's output: the inputs ``[B, K]`` of the distribution from which an action was drawn."""
VF_PREDS = "vf_preds"
"""The policy's output: the value ``[B]`` of an observation."""
LOGP = "logp"
"""The logarithm of the probability with which an action was drawn, ``[B]``."""
ADVANTAGES = "advantages"
"""How much better an action was than the policy is on average, ``[B]``; not normalised."""
VALUE_TARGETS = "value_targets"
"""The targets of the value function, ``[B]``."""


@dataclass(frozen=True)
class Advantages:
    """A Fold that estimates advantages with the values that the policy computed when it acted."""

    gamma: float
    lambda_: float
    """GAE's parameter; 1 without GAE."""
    uses_gae: bool
    """Whether the value function learns GAE's targets; otherwise it learns returns."""
    uses_critic: bool
    """Whether values are subtracted from returns, and replace rewards that are not known."""
    max_seq_len: int | None = None
    """Most steps of a sequence for a recurrent network; None: rows are in no sequences."""
    lookahead: ClassVar = 0

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return one row for each valid step ``t < num_starts``; sequences of env 0 first, then of env 1, and so on.

        With ``delta = r + gamma V(next) - V``, ADVANTAGES is the sum of ``(gamma lambda)^k delta_{t+k}`` to the end of
        the episode or to step ``num_starts`` (Schulman et al. 2016, equation 16), and VALUE_TARGETS is
        ``ADVANTAGES + V``. V(next) is 0 where the episode terminated, and the value of its true last observation where
        it was truncated. With lambda = 1 that is the discounted return minus V.
        """
        values = stream.outputs[VF_PREDS][: num_starts + 1].astype(np.float32, copy=False)
        if not self.uses_critic:
            values = np.zeros_like(values)
        advantages = self._advantages(stream, values, num_starts)
        places: Any = stream.valid[:num_starts]
        starts = {}
        if self.max_seq_len is not None:
            envs, steps = np.nonzero(places.T)
            places = steps, envs
            starts = {SEQUENCE_STARTS: sequence_starts(envs, steps, self.max_seq_len)}
        columns = {
            OBS: stream.obs[:num_starts][places],
            ACTIONS: stream.actions[:num_starts][places],
            ADVANTAGES: advantages[places],
            VALUE_TARGETS: (advantages + values[:-1])[places],
        }
        outputs = {name: output[:num_starts][places] for name, output in stream.outputs.items()}
        return SampleBatch({**columns, **outputs, **starts})

    def _advantages(self, stream: Fragment, values: Array, num_starts: int) -> Array:
        """Return the sums ``[num_starts, M]``; sums of steps that are not valid have no meaning."""
        gamma, decay = np.float32(self.gamma), np.float32(self.gamma * (self.lambda_ if self.uses_gae else 1.0))
        terminated, truncated = stream.terminated[:num_starts], stream.truncated[:num_starts]
        deltas = stream.rewards[:num_starts] + gamma * np.where(terminated, 0, values[1:]) - values[:-1]
        decays = decay * ~(terminated | truncated)
        advantages = np.empty_like(deltas)
        following = np.zeros_like(values[0])
        for step in range(num_starts - 1, -1, -1):
            following = deltas[step] + decays[step] * following
            advantages[step] = following
        return advantages


IS_STEP = "is_step"
"""Whether a row is an env step, ``[B]`` bool; other rows have the observation after the step before them."""


@dataclass(frozen=True)
class Segments:
    """A Fold that keeps steps in order, so that the learner itself can follow what came after each of them.

    A segment is steps of one env without a gap: to the end of its episode, or to the end of the fragment.
    """

    gamma: float
    max_seq_len: int | None = None
    """The same as in Advantages."""
    lookahead: ClassVar = 0

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return the segments of env 0 among the first ``num_starts`` steps, then of env 1, and so on.

        Each valid step is a row; the rows of a segment are followed by one more, which is not a step: its observation
        follows the last step, and its other columns have no meaning. So the row after a step has the observation after
        it. DISCOUNTS is ``gamma``, or 0 where the episode terminated.
        """
        valid = stream.valid[:num_starts]
        ends = (stream.terminated | stream.truncated)[:num_starts] | ~np.append(
            valid[1:], np.zeros_like(valid[:1]), axis=0
        )
        envs, steps = np.nonzero(valid.T)
        is_last = ends[steps, envs]
        rows_of_step = 1 + is_last
        step_of, env_of = np.repeat(steps, rows_of_step), np.repeat(envs, rows_of_step)
        is_step = np.ones(len(step_of), bool)
        is_step[rows_of_step.cumsum()[is_last] - 1] = False
        seen = step_of + ~is_step
        columns = {
            OBS: stream.obs[seen, env_of],
            ACTIONS: stream.actions[step_of, env_of],
            REWARDS: stream.rewards[step_of, env_of],
            DISCOUNTS: np.where(stream.terminated[step_of, env_of], 0.0, self.gamma).astype(np.float32),
            IS_STEP: is_step,
        }
        if self.max_seq_len is not None:  # the row after the steps belongs to their last sequence
            columns[SEQUENCE_STARTS] = sequence_starts(envs, steps, self.max_seq_len).repeat(rows_of_step) & is_step
        outputs = {name: output[seen, env_of] for name, output in stream.outputs.items() if name != VF_PREDS}
        return SampleBatch({**columns, **outputs})
