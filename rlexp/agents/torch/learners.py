"""Several learners that act as one: each computes the gradient of a part of each minibatch.

The agent has the ``LearnerGroup``. It replaces a learner that dies or hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, NoReturn, TypeVar

from rlexp.agents.torch.device import say_nothing
from rlexp.agents.torch.learner_process import LearnerProcess, LearnerSpec, PeerLostError, PeerUnreachedError
from rlexp.cluster.pool.pool import GET_TIMEOUT_S, Actor, ActorLostError, Lane, Resources, TaskPool
from rlexp.errors import TrialError
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.sample_batch import Array, SampleBatch

R = TypeVar("R")

START_TIMEOUT_S = 120.0
"""Seconds that the learners' processes may take to start and import torch."""
ANSWER_TIMEOUT_S = 60.0
"""Most seconds of every other wait, apart from ``learn_on_batch``."""
LOOK_S = 10.0
"""Seconds between two checks of the time while the learners are waited for."""
GRACE_S = 5.0
"""Seconds to wait for a lost learner's error after another one has lost it."""
_NETWORK_HINT = "GLOO_SOCKET_IFNAME in the environment of a node's Ray names another network interface; "
_HINT = "max_failures restarts a trial from its newest checkpoint"
MOST_REPLACEMENTS = 3
"""Most replacements within one train batch; a learner that dies again and again has a reason."""


@dataclass
class _LearnersLostError(Exception):
    """Raised if some learners died or hang while others hold: they can be replaced."""

    errors: Mapping[Actor[LearnerProcess], Exception]
    silent: Sequence[Actor[LearnerProcess]]
    """Those that hang."""


class LearnerGroup:
    """A Learner: owns ``num_learners`` processes with equal weights; the agent's thread calls it.

    Every learner has the whole train batch, draws the same minibatches, and takes its part of each. They sum their
    gradients and do the same step of Adam, so they stay equal bit by bit. Weights, state and stats come from the first
    one. If one dies or hangs, the others return to the state before the train batch, a new one gets that state from the
    first of them, and all learn on the batch again. If one fails, or none is left, all of them are ended. The first
    cause is raised, now and in every later call.
    """

    def __init__(
        self,
        pool: TaskPool,
        resources: Resources,
        spec: LearnerSpec,
        report: Callable[[str], object] = say_nothing,
    ) -> None:
        """Place the learners, which have ``resources`` each, and let them connect; raises TrialError if one cannot.

        ``report`` is called with a sentence after a learner was replaced. If ``resources`` name a bundle, it is the
        first learner's, and the other learners' bundles follow it.
        """
        self.num_updates = 0
        self._num_steps_sampled: int | None = None
        self._pool, self._resources, self._spec, self._report = pool, resources, spec, report
        self._num_batches = 0
        self._stats: Mapping[str, Any] = {}
        self._most_updates, self._peer_timeout_s = spec.most_updates, spec.peer_timeout_s
        self._lane = Lane(pool)
        self._failure: Exception | None = None
        self._learners = [self._placed(rank) for rank in range(spec.num_learners)]
        if any(learner.is_here for learner in self._learners):
            raise ValueError("several learners need processes of their own")
        try:
            self._connect()
        except _LearnersLostError as lost:  # none has learned anything yet
            self._end(lost.errors, lost.silent)

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Learn on a train batch as one learner does; ``should_stop`` is not called."""
        # A learner that is slower than the others fails earlier.
        timeout_s = (self._most_updates(batch.count) + 1) * self._peer_timeout_s
        sent, self._num_batches = self._pool.put(batch), self._num_batches + 1
        given = sent, self._num_steps_sampled, self._num_batches
        result, self.num_updates, self._stats = self._held(
            lambda: self._ask_all(timeout_s, LearnerProcess.learn_on_batch, *given)[0], self._num_batches
        )
        return result

    def stats(self) -> Mapping[str, Any]:
        return self._stats

    def get_weights(self) -> Weights:
        return self._held(lambda: self._ask(self._learners[:1], ANSWER_TIMEOUT_S, LearnerProcess.get_weights)[0])

    def state_dict(self) -> Mapping[str, Array]:
        return self._held(lambda: self._ask(self._learners[:1], ANSWER_TIMEOUT_S, LearnerProcess.state_dict)[0])

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Let every learner continue from the ``state_dict`` of a group or of a single learner."""
        self.num_updates = self._held(lambda: self._load(state))

    def _load(self, state: Mapping[str, Array]) -> int:
        sent = self._pool.put(state)
        return self._ask_all(ANSWER_TIMEOUT_S, LearnerProcess.load_state_dict, sent)[0]

    def _placed(self, rank: int) -> Actor[LearnerProcess]:
        resources = _of_learner(self._resources, rank)
        return self._pool.place(f"learner-{rank}", resources, LearnerProcess, rank, self._spec)

    def _held(self, ask: Callable[[], R], unfinished: int = 0) -> R:
        """Return what ``ask`` returns; if learners die meanwhile, replace them and ask again.

        ``unfinished`` is the number of the train batch that is learned; 0: none.
        """
        for _ in range(MOST_REPLACEMENTS):
            try:
                return ask()
            except _LearnersLostError as lost:
                self._replace(lost, unfinished)
        try:
            return ask()
        except _LearnersLostError as lost:
            self._end(lost.errors, lost.silent)

    def _replace(self, lost: _LearnersLostError, unfinished: int) -> None:
        """Place new learners for those that are lost; all continue from the state that the others hold."""
        died = [learner for learner, error in lost.errors.items() if isinstance(_raised(error), ActorLostError)]
        gone = {**dict.fromkeys(died, "died"), **dict.fromkeys(lost.silent, "hung")}
        others = [learner for learner in self._learners if learner not in gone]
        try:
            state = self._ask(others, ANSWER_TIMEOUT_S, LearnerProcess.leave, unfinished)[0]
            for learner in gone:
                self._pool.remove(learner)
                self._lane.forget(learner)
                rank = self._learners.index(learner)
                self._learners[rank] = self._placed(rank)
            self._connect()
            self.num_updates = self._load(state)
        except _LearnersLostError as again:
            self._end(again.errors, again.silent)
        for learner, what in gone.items():
            self._report(f"{_name(learner)} {what}; another one has replaced it, with the state of the others")

    def _connect(self) -> None:
        are_together = len(set(self._ask_all(START_TIMEOUT_S, LearnerProcess.node_id))) == 1
        first = self._learners[:1]
        ((address, port),) = self._ask(first, ANSWER_TIMEOUT_S, LearnerProcess.open_store, are_together)
        self._ask_all(ANSWER_TIMEOUT_S + self._peer_timeout_s, LearnerProcess.join, address, port, are_together)

    def _ask_all(
        self, timeout_s: float, method: Callable[Concatenate[LearnerProcess, ...], R], *args: object
    ) -> list[R]:
        return self._ask(self._learners, timeout_s, method, *args)

    def _ask(
        self,
        learners: list[Actor[LearnerProcess]],
        timeout_s: float,
        method: Callable[Concatenate[LearnerProcess, ...], R],
        *args: object,
    ) -> list[R]:
        """Return the results of each learner's ``method``; raises if one fails, dies or is late."""
        if self._failure is not None:
            raise self._failure
        for learner in learners:
            self._lane.submit(learner, method, *args)
        answers: dict[Actor[LearnerProcess], R] = {}
        errors: dict[Actor[LearnerProcess], Exception] = {}
        deadline = time.monotonic() + timeout_s
        while len(answers) + len(errors) < len(learners) and (left_s := deadline - time.monotonic()) > 0:
            self._pool.wait(min(left_s, LOOK_S))
            for call in self._lane.completed():
                try:
                    answers[call.actor] = self._pool.get(call.ref, GET_TIMEOUT_S)
                except Exception as error:  # any error of the learner
                    errors[call.actor] = error
            if errors:
                deadline = min(deadline, time.monotonic() + _patience_s(errors.values()))
        if len(answers) < len(learners):
            silent = [each for each in learners if each not in answers and each not in errors]
            if self._can_replace(errors, silent):
                raise _LearnersLostError(errors, silent)
            self._end(errors, silent)
        return [answers[learner] for learner in learners]

    def _can_replace(
        self, errors: Mapping[Actor[LearnerProcess], Exception], silent: Sequence[Actor[LearnerProcess]]
    ) -> bool:
        """Return whether some learners died or hang, and all other errors are that these were lost.

        A learner that cannot connect to the others would not be reached by another one either.
        """
        raised = [_raised(error) for error in errors.values()]
        num_lost = len(silent) + sum(isinstance(error, ActorLostError) for error in raised)
        is_cause = all(isinstance(error, ActorLostError | PeerLostError) for error in raised)
        is_reached = not any(isinstance(error, PeerUnreachedError) for error in raised)
        return is_cause and is_reached and 0 < num_lost < len(self._learners)

    def _end(
        self, errors: Mapping[Actor[LearnerProcess], Exception], silent: Sequence[Actor[LearnerProcess]]
    ) -> NoReturn:
        """End all learners; raise the first cause, given the errors of some and the silence of others."""
        for learner in self._learners:
            self._pool.remove(learner)
        self._failure = _first_cause(errors, silent)
        raise self._failure


def _patience_s(errors: Iterable[Exception]) -> float:
    """Return how long to wait for the errors of other learners, one of which may be the cause."""
    return GRACE_S if all(isinstance(_raised(error), PeerLostError | ActorLostError) for error in errors) else 0.0


def _first_cause(
    errors: Mapping[Actor[LearnerProcess], Exception], silent: Sequence[Actor[LearnerProcess]]
) -> Exception:
    """Return the error with which the trial ends."""
    for learner, error in errors.items():
        raised = _raised(error)
        if isinstance(raised, ActorLostError):
            return _with_hint(
                f"{_name(learner)} failed: {raised.message}", error, "it was killed, or memory was short; "
            )
        if not isinstance(raised, PeerLostError):
            raised.add_note(f"raised in {_name(learner)}")
            raised.__cause__ = error if error is not raised else None
            return raised
    for learner, error in errors.items():
        if isinstance(_raised(error), PeerUnreachedError):  # silent learners are still trying
            return _with_hint(f"{_name(learner)} failed: {_raised(error)}", error, _NETWORK_HINT)
    if silent:
        return _with_hint(f"{_name(silent[0])} hangs: it did not answer in time", next(iter(errors.values()), None))
    learner, error = next(iter(errors.items()))
    return _with_hint(f"{_name(learner)} failed: {_raised(error)}", error)


def _raised(error: Exception) -> Exception:
    """Return the error of the learner, without the layer that carried it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def _name(learner: Actor[LearnerProcess]) -> str:
    return learner.name.replace("-", " ")


def _with_hint(message: str, cause: Exception | None, why: str = "") -> TrialError:
    error = TrialError(message, why + _HINT)
    error.__cause__ = cause
    return error


def _of_learner(resources: Resources, rank: int) -> Resources:
    return resources if resources.bundle is None else replace(resources, bundle=resources.bundle + rank)
