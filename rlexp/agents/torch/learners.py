"""Several learners that act as one: each computes the gradient of a part of each minibatch.

A ``LearnerProcess`` is one of them, in a process group of torch.distributed. The agent has the ``LearnerGroup``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Concatenate, NoReturn, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it, but does not say so

from rlexp.agents.torch.device import learner_device
from rlexp.cluster.pool.pool import GET_TIMEOUT_S, Actor, ActorLostError, Lane, Resources, TaskPool
from rlexp.cluster.pool.ray_calls import own_node
from rlexp.errors import TrialError
from rlexp.policy import Learner, LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.sample_batch import Array, SampleBatch

PEER_TIMEOUT_S = 60.0
"""Seconds that a learner waits for another one, when they connect and at each sum."""
LOOPBACK = "127.0.0.1"
ANY_OUTER_ADDRESS = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737); no packets are sent to it."""


class PeerLostError(TrialError):
    """Raised if a sum with the other learners failed: one of them died, hangs or failed."""


class PeerUnreachedError(PeerLostError):
    """Raised if a learner cannot connect to the others; the message has the addresses."""


@dataclass(frozen=True)
class Shard:
    """The part of each minibatch for which one of several learners computes the gradient."""

    rank: int
    num_learners: int
    add_up: Callable[[Tensor], None]
    """Replaces a tensor by its sum over all learners; each calls it at the same time."""

    def part(self, indices: Tensor) -> Tensor:
        """Return the part of a minibatch's ``indices [b]``."""
        return indices if self.num_learners == 1 else indices.tensor_split(self.num_learners)[self.rank]


def _keep(tensor: Tensor) -> None:
    """Do nothing, as there is one learner."""


ALONE = Shard(0, 1, _keep)


@dataclass(frozen=True)
class LearnerSpec:
    """The settings of one of several learners, which differ only in their rank."""

    make: Callable[[str, Shard], Learner]
    """A function that makes a learner on a device, ``cpu`` or ``cuda``; it trains on its part of each minibatch."""
    most_updates: Callable[[int], int]
    """A function that returns the most SGD steps for a train batch of so many rows."""
    num_learners: int
    num_threads: int
    """Torch's threads in each learner's process."""
    num_gpus: float
    """GPUs of each learner."""
    peer_timeout_s: float = PEER_TIMEOUT_S


class LearnerProcess:
    """Owns a learner and its place in the process group; a LearnerGroup places and calls it.

    It needs a process of its own, for the group and for torch's threads. All of them ``join`` first.
    """

    def __init__(self, rank: int, spec: LearnerSpec) -> None:
        torch.set_num_threads(spec.num_threads)
        self._rank = rank
        self._num_learners = spec.num_learners
        self._device = learner_device(spec.num_gpus)
        self._learner = spec.make(self._device, Shard(rank, spec.num_learners, add_up))
        self._timeout = timedelta(seconds=spec.peer_timeout_s)
        self._store: TCPStore | None = None

    def node_id(self) -> str:
        """Return Ray's id of the learner's node."""
        return own_node().id

    def open_store(self, are_together: bool) -> tuple[str, int]:
        """Open the store through which the learners find each other; return its address and port.

        Only this host can connect to it if they ``are_together`` on it.
        """
        address = _address(are_together)
        listener = socket.create_server((address, 0))
        port: int = listener.getsockname()[1]
        self._store = _store(address, port, self._timeout, listener.detach())
        return address, port

    def join(self, address: str, port: int, are_together: bool) -> None:
        """Enter the process group when all learners have called this; raises PeerUnreachedError if one does not.

        By default, gloo listens at the address of the host's name, which Debian sets to 127.0.1.1.
        """
        own = _address(are_together)
        interface = interface_of(own)
        if interface is not None:
            own += f" (network interface {interface})"
            use_interface(interface, os.environ, is_only_choice=are_together)
        try:
            dist.init_process_group(
                backend="nccl" if self._device == "cuda" else "gloo",
                store=self._store or _store(address, port, self._timeout),
                rank=self._rank,
                world_size=self._num_learners,
                timeout=self._timeout,
            )
        except RuntimeError as error:
            what = f"{_first_line(error)}; its own address is {own}, the first learner's {address}"
            raise PeerUnreachedError(f"it cannot connect to the others: {what}") from error
        add_up(torch.zeros(1, device=self._device))  # nccl connects at the first sum

    def learn_on_batch(self, batch: SampleBatch, num_steps_sampled: int | None) -> tuple[LearnResult, int]:
        """Learn on a whole train batch, as all learners do; return the result and the number of updates so far.

        ``num_steps_sampled`` is the clock of schedules; None leaves it unchanged.
        """
        if num_steps_sampled is not None:
            self._learner.observe_progress(num_steps_sampled)
        return self._learner.learn_on_batch(batch), self._learner.num_updates

    def get_weights(self) -> Weights:
        """Return a copy of the weights, which all learners share."""
        return self._learner.get_weights()

    def state_dict(self) -> Mapping[str, Array]:
        """Return the state of the learner, which is equal in every learner."""
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> int:
        """Continue from the ``state_dict`` of any such learner; return its number of updates."""
        self._learner.load_state_dict(state)
        return self._learner.num_updates


def add_up(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all learners in the process group; raises PeerLostError."""
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        raise _peer_lost(error) from error


def _peer_lost(error: RuntimeError) -> PeerLostError:
    return PeerLostError(f"a sum with the other learners failed: {_first_line(error)}")


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]


def _store(address: str, port: int, timeout: timedelta, listener: int | None = None) -> TCPStore:
    """Return the store at an address; a process with a ``listener`` hosts it."""
    return TCPStore(
        address,
        port,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def _address(are_together: bool) -> str:
    """Return the address of this host for the other learners: the one that Ray's nodes use, if the host has it.

    Behind network address translation, the host's address differs from Ray's.
    """
    if are_together:
        return LOOPBACK
    address = own_node().address
    return address if address is not None and interface_of(address) else _outer_address()


def _outer_address() -> str:
    """Return this host's address for other hosts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(ANY_OUTER_ADDRESS)
        address: str = sender.getsockname()[0]
    return address


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with an address; None if there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(each.address == address for each in found)), None)


def use_interface(interface: str, environment: MutableMapping[str, str], is_only_choice: bool) -> None:
    """Let gloo and NCCL use a network interface; the user's own choice wins unless this ``is_only_choice``."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if is_only_choice or not environment.get(name):
            environment[name] = interface


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


class LearnerGroup:
    """A Learner: owns ``num_learners`` processes with equal weights; the agent's thread calls it.

    Every learner has the whole train batch, draws the same minibatches, and takes its part of each. They sum their
    gradients and do the same step of Adam, so they stay equal bit by bit. Weights, state and stats come from the first
    one. If one dies, hangs or fails, all of them are ended. The first cause is raised, now and in every later call.
    """

    def __init__(self, pool: TaskPool, resources: Resources, spec: LearnerSpec) -> None:
        """Place the learners, which have ``resources`` each, and let them connect; raises TrialError if one cannot.

        If ``resources`` name a bundle, it is the first learner's, and the other learners' bundles follow it.
        """
        self.num_updates = 0
        self._num_steps_sampled: int | None = None
        self._pool = pool
        self._most_updates, self._peer_timeout_s = spec.most_updates, spec.peer_timeout_s
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
        """Learn on a train batch as one learner does; ``should_stop`` is not called."""
        # A learner that is slower than the others fails earlier.
        timeout_s = (self._most_updates(batch.count) + 1) * self._peer_timeout_s
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
        """Let every learner continue from the ``state_dict`` of a group or of a single learner."""
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
        """Return the results of each learner's ``method``; end the group if one fails or is late."""
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
            self._end(errors, [each for each in learners if each not in answers and each not in errors])
        return [answers[learner] for learner in learners]

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
    return GRACE_S if all(isinstance(_raised(error), PeerLostError) for error in errors) else 0.0


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
