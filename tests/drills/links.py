"""A network of a drill's own: two hosts, and between them this process, which holds up, loses and repeats packets.

Each host is a network namespace with a TUN device. What one kernel gives to its device is read here and written to the
other's, so TCP at both ends meets real loss, without any module of the kernel for it. Needs root; nothing has a name
outside, and all of it ends with this process.

And what lies between an actor and its Redis: passes everything on, and loses, repeats and mixes up fragments.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

from tests.drills.scene import check

FAR = "10.78.0.2"
NEAR = ("10.78.0.1", "10.78.0.3")
"""Addresses at which the far host reaches servers of this machine: to it they are different hosts."""
_DEVICE: Final = "tun0"
_TUNSETIFF: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x0001 | 0x1000
_CLONE_NEWNET: Final = 0x40000000
_PACKET: Final = 1 << 16
_ADDRESSES: Final = (12, 16)
"""Where a packet has those of its sender and its receiver."""
_HOLDER: Final = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec cat"]
SEED: Final = 5
TAMPER_SEED: Final = 7
Made = TypeVar("Made")


@dataclass
class Impairment:
    """What happens to packets; may be changed at any time."""

    delay_s: float = 0.0
    """In each direction."""
    loss: float = 0.0
    """Part of the packets that never arrives, in each direction."""
    repeated: float = 0.0
    late: float = 0.0
    """Part of them that later ones overtake."""
    late_s: float = 0.05
    cut: frozenset[str] = frozenset()
    """Addresses to and from which nothing comes."""


class Link:
    """Two hosts and what lies between them; the far one reaches each of ``ports`` at an address of its own."""

    def __init__(self, ports: Sequence[int], stack: ExitStack) -> None:
        self.impairment = Impairment()
        self.num_packets, self.num_lost = 0, 0
        self._rng = random.Random(SEED)
        self._late: list[tuple[float, int, int, bytes]] = []
        """When a packet is due, its place among those of the same moment, its receiver, and its content."""
        self._ended = threading.Event()
        near, far = (_host(stack) for _ in range(2))
        self.prefix: Sequence[str] = ("nsenter", f"--net=/proc/{far}/ns/net", "--")
        """Words before a command that is to run at the far host."""
        self._devices = [_in_namespace(near, lambda: _tun(*NEAR)), _in_namespace(far, lambda: _tun(FAR))]
        for device in self._devices:
            stack.callback(os.close, device)
        self.servers = []
        """Address and port at which the far host finds each server."""
        for address, port in zip(NEAR, ports, strict=False):
            listener = _in_namespace(near, partial(socket.create_server, (address, 0)))
            stack.callback(listener.close)
            self.servers.append(f"{address}:{listener.getsockname()[1]}")
            threading.Thread(target=_forward, args=(listener, port), daemon=True).start()
        carrier = threading.Thread(target=self._carry, daemon=True)
        carrier.start()
        stack.callback(carrier.join, 10.0)
        stack.callback(self._ended.set)

    def _carry(self) -> None:
        while not self._ended.is_set():
            wait_s = max(self._late[0][0] - time.monotonic(), 0.0) if self._late else 0.05
            readable, _, _ = select.select(self._devices, [], [], min(wait_s, 0.05))
            for device in readable:
                receiver = self._devices[1 - self._devices.index(device)]
                self._take(os.read(device, _PACKET), receiver)
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, receiver, packet = heapq.heappop(self._late)
                with suppress(OSError):
                    os.write(receiver, packet)

    def _take(self, packet: bytes, receiver: int) -> None:
        now = self.impairment
        self.num_packets += 1
        ends = {socket.inet_ntoa(packet[place : place + 4]) for place in _ADDRESSES}
        if ends & now.cut or self._rng.random() < now.loss:
            self.num_lost += 1
            return
        due_s = time.monotonic() + now.delay_s + (now.late_s if self._rng.random() < now.late else 0.0)
        for _ in range(2 if self._rng.random() < now.repeated else 1):
            heapq.heappush(self._late, (due_s, self.num_packets, receiver, packet))


@contextmanager
def linked(*ports: int) -> Iterator[Link]:
    """Have a far host from which ``ports`` of this machine's loopback are reached over a network of its own."""
    check(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "hosts of its own need root and /dev/net/tun")
    with ExitStack() as stack:
        yield Link(ports, stack)


def _host(stack: ExitStack) -> int:
    """Make a namespace that ends with the stack; return a process in it."""
    holder = subprocess.Popen(_HOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdin is not None
    stack.callback(holder.wait, 10.0)
    stack.callback(holder.stdout.close)
    stack.callback(holder.stdin.close)
    check(holder.stdout.readline() == b"\n", "no network namespace can be made")
    return holder.pid


def _in_namespace(pid: int, make: Callable[[], Made]) -> Made:
    """Return what ``make`` returns in the namespace of a process: what it opens stays there."""

    def make_there() -> Made:
        with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
            failed = ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET)
        check(not failed, f"the namespace cannot be entered: {os.strerror(ctypes.get_errno())}")
        return make()

    with ThreadPoolExecutor(1) as thread:  # of its own, as it stays in the namespace
        return thread.submit(make_there).result()


def _tun(*addresses: str) -> int:
    """Return a device that gives this process all that is sent from ``addresses``, and takes what is to arrive."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _TUN_WITHOUT_HEADER))
    own = [["addr", "add", f"{address}/24", "dev", _DEVICE] for address in addresses]
    for words in (*own, ["link", "set", "dev", _DEVICE, "up"]):
        subprocess.run(["ip", *words], check=True, timeout=10, capture_output=True)
    return device


def _forward(listener: socket.socket, port: int) -> None:
    """Pass connections on to a port of this machine, until there is no listener any more."""
    with suppress(OSError):
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", port))
            for one, other in ((here, there), (there, here)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while content := one.recv(_PACKET):
            other.sendall(content)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


@dataclass
class Tampering:
    """What is done to the messages of RPUSH commands."""

    loss: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    """Part of the messages that are held back until the command after next."""
    counts: dict[str, int] = field(default_factory=lambda: {"passed": 0, "lost": 0, "repeated": 0, "late": 0})


class RedisTamper:
    """A TCP server before a Redis; each connection has a thread for each direction."""

    def __init__(self, port: int, tampering: Tampering) -> None:
        self._there, self._tampering = port, tampering
        self._rng = random.Random(TAMPER_SEED)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are there end with their clients."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._there))
                threading.Thread(target=self._pass_commands, args=(here, there), daemon=True).start()
                threading.Thread(target=_copy, args=(there, here), daemon=True).start()

    def _pass_commands(self, here: socket.socket, there: socket.socket) -> None:
        held: list[list[bytes]] = []
        with suppress(OSError), here.makefile("rb") as stream:
            while command := _read_command(stream):
                if command[0].upper() == b"RPUSH":
                    messages = self._tampered(command[2:], held)
                    # Both are answered by the length of the list.
                    command = [*command[:2], *messages] if messages else [b"LLEN", command[1]]
                there.sendall(_written(command))
        with suppress(OSError):
            there.shutdown(socket.SHUT_RDWR)

    def _tampered(self, messages: list[bytes], held: list[list[bytes]]) -> list[bytes]:
        """Return what goes on, with what was held back two commands before."""
        now, rng, counts = self._tampering, self._rng, self._tampering.counts
        sent: list[bytes] = []
        held.append([])
        for message in messages:
            counts["passed"] += 1
            if rng.random() < now.loss:
                counts["lost"] += 1
            elif rng.random() < now.late:
                counts["late"] += 1
                held[-1].append(message)
            elif rng.random() < now.repeated:
                counts["repeated"] += 1
                sent += [message, message]
            else:
                sent.append(message)
        sent += held.pop(0) if len(held) > 2 else []
        if now.late:
            rng.shuffle(sent)
        return sent


def _read_command(stream: IO[bytes]) -> list[bytes]:
    """Return the next command; empty at the end."""
    head = stream.readline()
    if not head.startswith(b"*"):
        return []
    return [stream.read(int(stream.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]


def _written(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)


@contextmanager
def tampered(port: int, tampering: Tampering) -> Iterator[RedisTamper]:
    """Have such a server before the Redis at a port of loopback."""
    server = RedisTamper(port, tampering)
    try:
        yield server
    finally:
        server.close()
