"""Clusters that no machine has, and trials to be placed on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlexp.cluster.room import Cluster, Machine, Node
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.trial import Trial

GIB = 2**30


def cluster(*cpus: int, gpus: tuple[int, ...] = (), memory: int = 64 * GIB, **custom: float) -> Cluster:
    """Return a joined cluster with a node for each number of CPUs; ``custom`` is what the first one has."""
    nodes = [
        Node(f"10.0.0.{1 + i}", Machine(number, (*gpus, *[0] * len(cpus))[i], memory, memory))
        for i, number in enumerate(cpus)
    ]
    nodes[0] = replace(nodes[0], custom=custom)
    return Cluster(tuple(nodes))


def trial(run: str = "APEX", env: str = "CartPole-v1", **config: Any) -> Trial:
    """Return a trial with the keys of ``config``."""
    experiment = AGENTS[run].model_validate({"name": "a", "run": run, "env": env, "config": config})
    return Trial(0, f"00000-{run}", experiment, {}, 0)
