"""Learner groups in plain processes, and their learners one by one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gymnasium.spaces import Space

from rlexp.agents.ppo.learner import ALONE, PPOLearner, Shard
from rlexp.agents.torch.learners import LearnerGroup, LearnerProcess, LearnerSpec
from rlexp.cluster.pool import Actor, Resources
from rlexp.models.action_distributions import actions_of
from rlexp.sample_batch import Array
from tests.doubles.process_pool import ProcessTaskPool
from tests.unit.agents.ppo.batches import CHOICES, LEARNER, network_config

NOTHING_RESERVED = Resources(cpus=0, gpus=0)
SOON_S = 10.0
"""How long it takes at most, on a busy machine, until a failure is noticed and all learners are ended."""


def learner_spec(space: Space[Any] = CHOICES, num_learners: int = 2, **changes: Any) -> LearnerSpec:
    """Return what learners are built from; ``changes`` are those of the PPOLearnerConfig."""
    config = replace(LEARNER, **{"grad_norm_clipping": 0.5, **changes})
    return LearnerSpec(network_config(space), actions_of(space), config, 7, num_learners, num_threads=1, num_gpus=0)


def ppo_learner(spec: LearnerSpec, shard: Shard = ALONE) -> PPOLearner:
    """Return a learner in this process."""
    return PPOLearner(spec.network, spec.actions, spec.config, spec.seed, shard)


class Group:
    """A LearnerGroup, its pool and the actors of its learners."""

    def __init__(self, spec: LearnerSpec) -> None:
        self.spec = spec
        self.pool = ProcessTaskPool()
        self.learner = LearnerGroup(self.pool, NOTHING_RESERVED, spec)
        self.actors: list[Actor[LearnerProcess]] = self.pool.actors()
        self.pids = [int(actor.handle) for actor in self.actors]

    def states(self) -> list[dict[str, bytes]]:
        """Return the state of each learner."""
        refs = [self.pool.call(actor, LearnerProcess.state_dict) for actor in self.actors]
        return [as_bytes(self.pool.get(ref, SOON_S)) for ref in refs]

    def signal_while_learning(self, rank: int, number: signal.Signals) -> threading.Timer:
        """Send a signal to a learner in a moment, when it learns."""
        timer = threading.Timer(0.5, os.kill, (self.pids[rank], number))
        timer.start()
        return timer


@contextmanager
def running(spec: LearnerSpec) -> Iterator[Group]:
    """Provide a group, and end its processes."""
    group = Group(spec)
    try:
        yield group
    finally:
        group.pool.stop()


def as_bytes(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}
