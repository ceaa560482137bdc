"""A cluster of a test: its nodes, which each kind of nodes makes in its own way, and the commands that run in them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

COMMAND_TIMEOUT_S = 420.0
LOOK_S = 0.2


def wait_until(is_so: Callable[[], object], timeout_s: float, what: str) -> float:
    """Look until ``is_so`` returns something true, and return the seconds that took; AssertionError after the time."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic() - begun


@dataclass
class Command:
    """A command that runs in a node; ended by its owner through ``end``."""

    process: subprocess.Popen[str]
    has_wrapper: bool

    def signal(self, number: int) -> None:
        """Send a signal to the command itself, not to the program that entered the namespaces for it."""
        if not self.has_wrapper:
            self.process.send_signal(number)
            return
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)

    def wait(self, timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Return how the command ended; after the time, end it and raise AssertionError with its output."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            out, err = self.process.communicate(timeout=30)
            raise AssertionError(f"not done after {timeout_s:g} s: {self.process.args!r}\n{out}\n{err}") from None
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def kill_tree(self) -> None:
        """Kill it and every process that it has started, as the end of a container does."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if not self.has_wrapper:
            self.process.kill()

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)


class TestCluster(ABC):
    """Some nodes with one Ray; node 1 is the head, and the driver of a test usually runs there."""

    __test__ = False

    has_own_disks: ClassVar[bool]
    """Whether ``disk`` has other files on each node."""
    address: str
    """Host and port of the head."""

    def __init__(self, folder: Path, cpus: float, environment: Mapping[str, str]) -> None:
        """``folder`` gets logs and the mount point of the nodes' disks; ``cpus``: of a node that is added later."""
        self.disk = folder / "disk"
        """A folder with other files on each node; other folders, such as ``tmp_path``, are shared."""
        self._folder = folder
        self._cpus = cpus
        self._environment = environment
        self._commands: list[Command] = []

    @abstractmethod
    def add(self) -> int:
        """Make another node without Ray, and return its number."""

    @abstractmethod
    def start(self, node: int, cpus: float) -> None:
        """Start Ray in a node that has none."""

    @abstractmethod
    def wait_for_all(self) -> None:
        """Return when every Ray that was started is ready; raises AssertionError with its log where one is not."""

    @abstractmethod
    def wrapped(self, node: int, command: Sequence[str], folder: Path) -> list[str]:
        """Return what runs a command in a node with ``folder`` as its current one; itself where nothing is entered."""

    @abstractmethod
    def kill_node(self, node: int) -> None:
        """Cut a node from the network and kill every process in it, as when a machine loses its power."""

    @abstractmethod
    def cut_link(self, node: int, cut_s: float) -> None:
        """Cut a node from the network for a while; its processes go on."""

    @abstractmethod
    def ip(self, node: int) -> str:
        """Return the address of a node."""

    @abstractmethod
    def path(self, node: int, path: Path) -> Path:
        """Return where a file of a node's own disk can be read from here."""

    @abstractmethod
    def processes(self, node: int) -> list[psutil.Process]:
        """Return all processes of a node."""

    @abstractmethod
    def end_nodes(self) -> None:
        """End every process and namespace."""

    def add_node(self) -> int:
        """Make another node with Ray, and return its number."""
        node = self.add()
        self.start(node, self._cpus)
        self.wait_for_all()
        return node

    def open(self, node: int, command: Sequence[str], folder: Path, **environ: str) -> Command:
        """Start a command in a node, with ``folder`` as its current one."""
        wrapped = self.wrapped(node, command, folder)
        process = subprocess.Popen(
            wrapped,
            cwd=folder if len(wrapped) == len(command) else None,
            env={**self._environment, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._commands.append(Command(process, has_wrapper=len(wrapped) != len(command)))
        return self._commands[-1]

    def run(
        self, node: int, command: Sequence[str], folder: Path, timeout_s: float = COMMAND_TIMEOUT_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node to its end."""
        return self.open(node, command, folder, **environ).wait(timeout_s)

    def rlexp(
        self, node: int, *words: str, folder: Path, timeout_s: float = COMMAND_TIMEOUT_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run rlexp in a node to its end."""
        return self.run(node, [sys.executable, "-m", "rlexp", *words], folder, timeout_s, **environ)

    def close(self) -> None:
        """End every command, process and namespace."""
        for command in self._commands:
            command.end()
        self.end_nodes()
        for command in self._commands:
            command.process.communicate(timeout=30)
