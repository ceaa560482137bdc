"""Several learners of PPO that act as one: each computes the gradient of a part of each minibatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, NoReturn, TypeVar

from rlexp.agents.ppo.learner_process import LearnerProcess, LearnerSpec, PeerLostError, PeerUnreachedError
from rlexp.errors import TrialError
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.sample_batch import Array, SampleBatch
from rlexp.task_pool import GET_TIMEOUT_S, Actor, ActorLostError, Lane, Resources, TaskPool

R = TypeVar("R")

START_TIMEOUT_S = 120.0
"""How long the processes of the learners may take to start and import torch."""
ANSWER_TIMEOUT_S = 60.0
"""Bound of every other wait, apart from ``learn_on_batch``."""
LOOK_S = 10.0
"""How often the clock is looked at while the learners are waited for."""
GRACE_S = 5.0
"""After a learner has lost another one: how long the error of that one is waited for."""
_NETWORK_HINT = "GLOO_SOCKET_IFNAME in the environment of a node's Ray names another network interface; "
_HINT = "max_failures restarts a trial from its newest checkpoint"


class LearnerGroup:
    """A Learner: owns ``num_learners`` processes with equal weights; the agent's thread calls it.

    Every learner has the whole train batch, draws the same minibatches, and takes its part of each. They add up
    their gradients and do the same step of Adam, so that they stay equal bit by bit. Weights, state and figures are
    those of the first one. If one dies, hangs or fails, all of them are ended and the first cause is raised, now and
    in every later call.
    """

    def __init__(self, pool: TaskPool, resources: Resources, spec: LearnerSpec) -> None:
        """Place the learners, which have ``resources`` each, and let them connect; raises TrialError if one cannot.

        Where ``resources`` name a bundle, it is that of the first learner, and those of the others follow.
        """
        self.num_updates = 0
        self._num_steps_sampled: int | None = None
        self._pool = pool
        self._config = spec.config
        self._peer_timeout_s = spec.peer_timeout_s
        self._lane = Lane(pool)
        self._failure: Exception | None = None
        self._learners = [
            pool.place(f"learner-{rank}", _of_learner(resources, rank), LearnerProcess, rank, spec)
            for rank in range(spec.num_learners)
        ]
        if any(learner.is_here for learner in self._learners):
            raise ValueError("several learners need processes of their own")
        self._connect()

    def observe_progress(self, num_steps_sampled: int) -> None:
        self._num_steps_sampled = num_steps_sampled

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        """Do all epochs over a train batch; see ``PPOLearner.learn_on_batch``. ``should_stop`` is not called."""
        num_updates = self._config.num_sgd_iter * (batch.count // self._config.sgd_minibatch_size + 1)
        timeout_s = (num_updates + 1) * self._peer_timeout_s  # one that is slower than the others fails earlier
        sent = self._pool.put(batch)
        answers = self._ask_all(timeout_s, LearnerProcess.learn_on_batch, sent, self._num_steps_sampled)
        result, self.num_updates = answers[0]
        return result

    def stats(self) -> Mapping[str, Any]:
        return {}

    def get_weights(self) -> Weights:
        return self._ask(self._learners[:1], ANSWER_TIMEOUT_S, LearnerProcess.get_weights)[0]

    def state_dict(self) -> Mapping[str, Array]:
        return self._ask(self._learners[:1], ANSWER_TIMEOUT_S, LearnerProcess.state_dict)[0]

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Let every learner continue from what ``state_dict`` of a group or of a PPOLearner returned."""
        sent = self._pool.put(state)
        self.num_updates = self._ask_all(ANSWER_TIMEOUT_S, LearnerProcess.load_state_dict, sent)[0]

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
        """Return what ``method`` of each learner returns; ends the group if one fails, or is not ready in time."""
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
                except Exception as error:  # whatever the learner raised
                    errors[call.actor] = error
            if errors:
                deadline = min(deadline, time.monotonic() + _patience_s(errors.values()))
        if len(answers) < len(learners):
            self._end(errors, [each for each in learners if each not in answers and each not in errors])
        return [answers[learner] for learner in learners]

    def _end(
        self, errors: Mapping[Actor[LearnerProcess], Exception], silent: Sequence[Actor[LearnerProcess]]
    ) -> NoReturn:
        """End all learners; raise the first cause, from the errors of some and the silence of others."""
        for learner in self._learners:
            self._pool.remove(learner)
        self._failure = _first_cause(errors, silent)
        raise self._failure


def _patience_s(errors: Iterable[Exception]) -> float:
    """Return how long the errors of other learners are waited for: one of them may be the cause of these."""
    return GRACE_S if all(isinstance(_raised(error), PeerLostError) for error in errors) else 0.0


def _first_cause(
    errors: Mapping[Actor[LearnerProcess], Exception], silent: Sequence[Actor[LearnerProcess]]
) -> Exception:
    """Return the error that the trial ends with."""
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
        if isinstance(_raised(error), PeerUnreachedError):  # those that are silent still try
            return _with_hint(f"{_name(learner)} failed: {_raised(error)}", error, _NETWORK_HINT)
    if silent:
        return _with_hint(f"{_name(silent[0])} hangs: it did not answer in time", next(iter(errors.values()), None))
    learner, error = next(iter(errors.items()))
    return _with_hint(f"{_name(learner)} failed: {_raised(error)}", error)


def _raised(error: Exception) -> Exception:
    """Return what was raised in the learner, without the layer that carried it."""
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
