"""LearnerProcess: one of several learners, which has a part of each minibatch; torch.distributed adds gradients up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it, but does not say so

from rlexp.agents.torch.device import learner_device
from rlexp.cluster.pool.nodes import own_node
from rlexp.errors import TrialError
from rlexp.policy import Learner, LearnResult, Weights
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

    def part_of_rows(self, batch: SampleBatch, starts: Callable[[SampleBatch], Array]) -> tuple[SampleBatch, bool]:
        """Return the part of a train batch's rows, and whether they are spare, as another learner has them.

        Parts begin at some of the rows ``starts(batch) [S]``, and have about equally many rows. If there are fewer
        such rows than learners, or some segments are long, the parts of some learners are spare.
        """
        if self.num_learners == 1:
            return batch, False
        edges = np.append(starts(batch), batch.count)
        wanted = np.arange(self.num_learners + 1) * batch.count / self.num_learners
        begin, end = edges[np.searchsorted(edges, wanted[self.rank : self.rank + 2])]
        return (batch.slice(begin, end), False) if begin < end else (batch.slice(0, edges[1]), True)


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
        self._before: tuple[int, Mapping[str, Array]] | None = None
        """The number of the last train batch, and the state before it."""

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

    def learn_on_batch(
        self, batch: SampleBatch, num_steps_sampled: int | None, number: int
    ) -> tuple[LearnResult, int, Mapping[str, Any]]:
        """Learn on a whole train batch, as all learners do; return the result, the number of updates, and its stats.

        ``num_steps_sampled`` is the clock of schedules; None leaves it unchanged. ``number`` counts train batches.
        """
        self._before = number, self._learner.state_dict()
        if num_steps_sampled is not None:
            self._learner.observe_progress(num_steps_sampled)
        try:
            return self._learner.learn_on_batch(batch), self._learner.num_updates, self._learner.stats()
        except PeerLostError:
            dist.destroy_process_group()  # those that wait for this learner fail too, instead of waiting
            raise

    def leave(self, number: int) -> Mapping[str, Array]:
        """Leave the process group, in which another learner died; return the state from before train batch ``number``.

        A learner whose last train batch is another one returns its state.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None
        if self._before is not None and self._before[0] == number:
            return self._before[1]
        return self._learner.state_dict()

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
