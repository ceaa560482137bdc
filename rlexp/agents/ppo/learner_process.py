"""One of several learners of PPO: its part of each minibatch, in a process group of torch.distributed."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it, but does not say so

from rlexp.agents.ppo.learner import PPOLearner, PPOLearnerConfig, Shard
from rlexp.agents.torch.device import learner_device
from rlexp.errors import TrialError
from rlexp.models import ActorCriticConfig
from rlexp.models.action_distributions import Actions
from rlexp.policy import LearnResult, Weights
from rlexp.sample_batch import Array, SampleBatch
from rlexp.task_pool import own_node

PEER_TIMEOUT_S = 60.0
"""How long a learner waits for another one, when they connect and at each sum."""
LOOPBACK = "127.0.0.1"
ANY_OUTER_ADDRESS = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737); nothing is sent there."""


class PeerLostError(TrialError):
    """A sum with the other learners failed: one of them has died, hangs or has failed."""


class PeerUnreachedError(PeerLostError):
    """A learner cannot connect to the others; the message has the addresses."""


@dataclass(frozen=True)
class LearnerSpec:
    """Everything that one of several learners is built from; they differ in their rank only."""

    network: ActorCriticConfig
    actions: Actions
    config: PPOLearnerConfig
    """Its device is chosen in the learner's process, by ``num_gpus``."""
    seed: int
    num_learners: int
    num_threads: int
    """Torch's threads in the process of each."""
    num_gpus: float
    """GPUs of each."""
    peer_timeout_s: float = PEER_TIMEOUT_S


class LearnerProcess:
    """Owns a PPOLearner and its place in the process group; a LearnerGroup places and calls it.

    It needs a process of its own, for the group and for torch's threads. First all of them ``join``.
    """

    def __init__(self, rank: int, spec: LearnerSpec) -> None:
        torch.set_num_threads(spec.num_threads)
        self._rank = rank
        self._num_learners = spec.num_learners
        self._device = learner_device(spec.num_gpus)
        shard = Shard(rank, spec.num_learners, add_up)
        self._learner = PPOLearner(
            spec.network, spec.actions, replace(spec.config, device=self._device), spec.seed, shard
        )
        self._timeout = timedelta(seconds=spec.peer_timeout_s)
        self._store: TCPStore | None = None

    def node_id(self) -> str:
        """Return Ray's id of its node."""
        return own_node().id

    def open_store(self, are_together: bool) -> tuple[str, int]:
        """Open the store by which the learners find each other; return its address and port.

        Only this host can connect to it if they ``are_together`` on it.
        """
        address = _address(are_together)
        listener = socket.create_server((address, 0))
        port: int = listener.getsockname()[1]
        self._store = _store(address, port, self._timeout, listener.detach())
        return address, port

    def join(self, address: str, port: int, are_together: bool) -> None:
        """Enter the process group, once all learners have called this; raises PeerUnreachedError if one does not.

        Left to itself, gloo would listen at the address of the host's name, which Debian sets to 127.0.1.1.
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

        ``num_steps_sampled`` is the clock of schedules; None leaves it as it is.
        """
        if num_steps_sampled is not None:
            self._learner.observe_progress(num_steps_sampled)
        return self._learner.learn_on_batch(batch), self._learner.num_updates

    def get_weights(self) -> Weights:
        """Return a copy of the weights, those of every learner."""
        return self._learner.get_weights()

    def state_dict(self) -> Mapping[str, Array]:
        """Return the state of a PPOLearner, that of every learner."""
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> int:
        """Continue from what ``state_dict`` of any PPOLearner returned; return its number of updates."""
        self._learner.load_state_dict(state)
        return self._learner.num_updates


def add_up(tensor: Tensor) -> None:
    """Replace a tensor by the sum of those of all learners in the process group; raises PeerLostError."""
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        raise _peer_lost(error) from error


def _peer_lost(error: RuntimeError) -> PeerLostError:
    return PeerLostError(f"a sum with the other learners failed: {_first_line(error)}")


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]


def _store(address: str, port: int, timeout: timedelta, listener: int | None = None) -> TCPStore:
    """Return the store at an address; with a listening socket, this process has it."""
    return TCPStore(
        address,
        port,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def _address(are_together: bool) -> str:
    """Return the address of this host towards the other learners: the one by which Ray's nodes reach it, if it has it.

    Behind a translation of addresses the host has another one than Ray uses.
    """
    if are_together:
        return LOOPBACK
    address = own_node().address
    return address if address is not None and interface_of(address) else _outer_address()


def _outer_address() -> str:
    """Return the address of this host towards other hosts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(ANY_OUTER_ADDRESS)
        address: str = sender.getsockname()[0]
    return address


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an address, None where there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(each.address == address for each in found)), None)


def use_interface(interface: str, environment: MutableMapping[str, str], is_only_choice: bool) -> None:
    """Let gloo and NCCL use a network interface; one that the user has named wins unless there ``is_only_choice``."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if is_only_choice or not environment.get(name):
            environment[name] = interface
