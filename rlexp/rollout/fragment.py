"""What a worker records while it steps its envs, before it becomes transitions, and what it reports about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rlexp.policy import Outputs
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import Array


@dataclass(frozen=True)
class Fragment:
    """``T`` consecutive steps of ``M`` envs, time-major.

    One stream of observations serves every step: the observation after step t is ``obs[t + 1]``. Because
    the vector env resets on the step after an episode's end, that is also the episode's true last
    observation; the resetting step itself is no transition and has ``valid`` False.
    """

    obs: Array
    """Observations ``[T + 1, M, ...]``."""
    actions: Array
    """Actions ``[T, M, ...]``, of the action space's shape and dtype."""
    rewards: Array
    """Rewards ``[T, M]``, float32, as the learner sees them."""
    terminated: Array
    """``[T, M]`` bool: the episode ended here, and no value follows."""
    truncated: Array
    """``[T, M]`` bool: the episode was cut here; the value of what follows still counts."""
    valid: Array
    """``[T, M]`` bool: a real env step, not the reset between two episodes."""
    outputs: Outputs = field(default_factory=dict)
    """What the policy computed for each observation, ``[T + 1, M, ...]`` by name."""

    @property
    def num_steps(self) -> int:
        """Steps ``T``."""
        return len(self.actions)

    def since(self, step: int) -> Fragment:
        """Return the steps from ``step`` on, as views."""
        return Fragment(
            self.obs[step:],
            self.actions[step:],
            self.rewards[step:],
            self.terminated[step:],
            self.truncated[step:],
            self.valid[step:],
            {name: output[step:] for name, output in self.outputs.items()},
        )

    def state(self) -> dict[str, Any]:
        """Return its arrays by their names: ``Fragment(**state)`` is an equal one."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def followed_by(self, later: Fragment) -> Fragment:
        """Return this fragment and the one recorded right after it as one."""
        return Fragment.join([self, later])

    @staticmethod
    def join(parts: Sequence[Fragment]) -> Fragment:
        """Return fragments, each recorded right after the one before, as one.

        At a border there are two outputs for one observation: those of the weights that acted on it are kept.
        """
        return Fragment(
            _overlapping([part.obs for part in parts]),
            np.concatenate([part.actions for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.valid for part in parts]),
            {name: _overlapping([part.outputs[name] for part in parts]) for name in parts[-1].outputs},
        )


def _overlapping(parts: Sequence[Array]) -> Array:
    """Join arrays ``[T + 1, M, ...]``, of which the last item of each is the first one of the next."""
    return np.concatenate([*(part[:-1] for part in parts[:-1]), parts[-1]])


@dataclass(frozen=True)
class SampleTime:
    """Seconds that it took to make a sample."""

    total_s: float = 0.0
    acting_s: float = 0.0
    """Of them, those in which the policy chose actions."""
    stepping_s: float = 0.0
    """Those in which the envs stepped."""
    folding_s: float = 0.0
    """Those in which steps became transitions with priorities."""

    @staticmethod
    def sum(parts: Iterable[SampleTime]) -> SampleTime:
        """Return the time of all parts together."""
        total_s = acting_s = stepping_s = folding_s = 0.0
        for part in parts:
            total_s += part.total_s
            acting_s += part.acting_s
            stepping_s += part.stepping_s
            folding_s += part.folding_s
        return SampleTime(total_s, acting_s, stepping_s, folding_s)


@dataclass(frozen=True)
class SampleInfo:
    """What a worker reports about a batch; small, and separate from it, so that the batch can be sent by reference."""

    worker_index: int
    num_rows: int
    """Transitions in the batch."""
    num_env_steps: int
    """Env steps taken; differs from ``num_rows`` by what waits for its n-step successors, or for its episode's end."""
    episodes: Episodes
    weights_version: int
    """Learner updates behind the weights of its last step."""
    time: SampleTime
    """How long it took to make."""
    observed: Moments | None = None
    """Moments of the raw observations, where there is a filter."""
    shard: int | None = None
    """The replay shard for which the rows were written already; None: they may go to any."""
    num_weight_reads: int | None = None
    """How often the worker itself has read newer weights from shared memory for them; None: it is sent weights."""
