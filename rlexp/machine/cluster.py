"""Cluster: the machines that trials may run on, one of our own or those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlexp.machine.hardware import Machine


@dataclass(frozen=True)
class Node:
    """One machine of a cluster."""

    name: str
    """As Ray's own tables name it: its address."""
    machine: Machine
    """What it offers in all; other jobs may use some of it now."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """Amounts of the cluster's own resources, by name."""
    is_driver: bool = False
    """Whether the command runs on it."""
    sees_out: bool = True
    """Whether it has the directory of the runs, as a shared disk has."""


@dataclass(frozen=True)
class Cluster:
    """The nodes that trials may use."""

    nodes: tuple[Node, ...]
    is_joined: bool = True
    """Whether it is somebody's cluster; if not, the only node is this machine, with a Ray of our own."""

    @classmethod
    def of(cls, machine: Machine) -> Cluster:
        """Return a Ray of our own on ``machine``."""
        return cls((Node("this machine", machine, is_driver=True),), is_joined=False)

    @property
    def cpus(self) -> int:
        """Return the CPUs of all nodes."""
        return sum(node.machine.cpus for node in self.nodes)

    @property
    def gpus(self) -> int:
        """Return the GPUs of all nodes."""
        return sum(node.machine.gpus for node in self.nodes)

    @property
    def shares_out(self) -> bool:
        """Whether every node has the directory of the runs."""
        return all(node.sees_out for node in self.nodes)
