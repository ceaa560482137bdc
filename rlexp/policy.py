"""The two protocols of an algorithm: a Policy acts on the rollout workers, a Learner updates the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rlexp.sample_batch import Array, SampleBatch

Weights = Mapping[str, Array]
"""A network's parameters by name, as plain arrays: sent from the learner to the workers."""
Outputs = Mapping[str, Array]
"""A policy's results for observations ``[M, ...]``, as columns ``[M, ...]`` by name, beside their actions."""


class LiveWeights(dict[str, Array]):
    """Weights in their learner's own memory; every update changes them, in the thread that acts with them.

    A policy may act with them in place, or copy them. It gets them again after each update, and never in another thread
    or process.
    """


@dataclass(frozen=True)
class LearnResult:
    """The report of learning on one batch."""

    stats: Mapping[str, float]
    """Stats for the results, such as ``loss`` and ``grad_norm``."""
    td_errors: Array | None = None
    """Absolute TD errors ``[B]`` of the batch's rows, measured before it: their new priorities, if any."""


class InterruptedLearningError(Exception):
    """Raised if a learner was asked to stop within a batch; it is unchanged, and nothing of the batch is learned."""


class Policy(Protocol):
    """Chooses and explores actions; owned by a rollout worker or an evaluation, used by one thread."""

    postprocess_reads_obs: bool
    """Whether ``postprocess`` needs the observations of a batch, beside the other columns."""

    def compute_actions(self, obs: Array) -> Array:
        """Return the greedy actions ``[B, ...]`` for observations ``obs [B, ...]``."""

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        """Return the exploring actions ``[M, ...]`` for the worker's next step, and their outputs.

        ``obs [M, ...]`` are from the worker's envs; the envs ``resetting [M]`` start an episode instead of acting.
        ``num_steps_sampled``, the env steps of all workers, is the clock of schedules. The names of the outputs never
        change; the fold makes columns of them, which ``postprocess`` and the learner may use.
        """

    def outputs(self, obs: Array) -> Outputs:
        """Return the outputs of ``act`` for observations ``[M, ...]`` on which nobody has acted yet."""

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Return ``batch`` with the columns that the learner or replay needs, such as first TD errors."""

    def set_weights(self, weights: Weights) -> None:
        """Act with these weights from now on."""

    def state(self) -> dict[str, Any]:
        """Return the state of its actions beside weights, such as noise: arrays, and values for JSON, by name."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``state`` of a policy like this one, whose weights are loaded already."""


@runtime_checkable
class HasMemory(Protocol):
    """What acts with a memory of the episode of each env, as a recurrent network does.

    Each call of ``act`` or ``compute_actions`` is for the next step of the same envs, in order.
    """

    def start_episodes(self, num_envs: int) -> None:
        """Forget all: the next observations are the first ones of so many envs."""

    def after_step(self, rewards: Array, starting: Array) -> None:
        """Remember the step that the envs made by the last actions.

        ``rewards [M]``, as the env gave them, followed the actions. The next observations of the envs ``starting [M]``
        are the first ones of new episodes, so their past is forgotten.
        """


class Learner(Protocol):
    """Updates the weights; owned by one thread at a time."""

    @property
    def num_updates(self) -> int:
        """SGD steps done, which are the version of the weights."""

    def observe_progress(self, num_steps_sampled: int) -> None:
        """Set the env steps sampled so far, the clock of schedules; may be called from another thread."""

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Do one SGD step on ``batch``, or several: ``num_updates`` counts each of them.

        Their number depends only on the learner and the length of the batch.
        """

    def stats(self) -> Mapping[str, Any]:
        """Return its counters beside updates, for the results; may be called from another thread."""

    def get_weights(self) -> Weights:
        """Return a copy of the acting network's weights."""

    def state_dict(self) -> Mapping[str, Array]:
        """Return everything that a checkpoint must hold to continue bit by bit."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state_dict`` returned."""


@runtime_checkable
class HasLiveWeights(Learner, Protocol):
    """A learner with weights that others can read in its own memory."""

    def live_weights(self) -> LiveWeights | None:
        """Return the same object at each call; None if NumPy cannot read its memory."""


class PendingUpdate(Protocol):
    """An update that a learner has begun."""

    def result(self) -> LearnResult:
        """Wait for its end and return its report; raises as ``learn_on_batch`` does. Call it once."""


@runtime_checkable
class PipelinedLearner(Learner, Protocol):
    """A learner that can begin an update before the results of earlier ones were read.

    ``learn_on_batch(batch)`` is ``submit(batch).result()``. The weights and the state that it returns include all
    updates begun.
    """

    @property
    def max_pending_updates(self) -> int:
        """Most updates whose results may wait while the next one begins; 0: each is read before."""

    def submit(self, batch: SampleBatch) -> PendingUpdate:
        """Begin the update of ``learn_on_batch``; the caller reads the results in the order of the updates."""
