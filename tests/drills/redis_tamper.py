"""What lies between an actor and its Redis: passes everything on, and loses, repeats and mixes up fragments."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

SEED = 7


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
        self._rng = random.Random(SEED)
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
                for work in (self._pass_commands, _pass_answers):
                    threading.Thread(target=work, args=(here, there), daemon=True).start()

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


def _pass_answers(here: socket.socket, there: socket.socket) -> None:
    with suppress(OSError):
        while content := there.recv(1 << 16):
            here.sendall(content)
    with suppress(OSError):
        here.shutdown(socket.SHUT_RDWR)


@contextmanager
def tampered(port: int, tampering: Tampering) -> Iterator[RedisTamper]:
    """Have such a server before the Redis at a port of loopback."""
    server = RedisTamper(port, tampering)
    try:
        yield server
    finally:
        server.close()
