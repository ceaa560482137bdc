"""Everything that a rollout worker is built from, in any process. This module imports neither torch nor Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gymnasium.vector import VectorEnv

from rlexp.policy import Policy
from rlexp.rollout.filters import Moments
from rlexp.rollout.folds import Fold
from rlexp.rollout.shared_weights import WeightsHandle
from rlexp.rollout.user_callbacks import CallbackClasses
from rlexp.sample_batch import SampleBatch, WrittenRows

MakeVectorEnv = Callable[[], "VectorEnv[Any, Any, Any]"]
MakePolicy = Callable[[], Policy]

RewardLimits = bool | float | tuple[float, float]
"""True: their sign. False: whole. A number x: limited to [-x, x]. A pair: limited to [low, high]."""


class RowWriter(Protocol):
    """Puts rows where replay finds them, so that the worker need not send them."""

    def write(self, batch: SampleBatch) -> WrittenRows:
        """Write ``batch [B]`` and return where it is."""
        ...


@dataclass(frozen=True)
class RolloutConfig:
    """How a worker samples, whatever the algorithm."""

    fragment_length: int
    """Steps per env and fragment (``sample_batch_size``)."""
    clip_rewards: RewardLimits
    """How the learner sees rewards; episode returns are never clipped."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"]
    """Whether ``sample`` returns what it has recorded, or whole episodes only."""
    sample_async: bool
    """Whether the next fragment is recorded while this one is folded and sent."""
    observation_filter: Moments | None = None
    """The moments that a MeanStdFilter starts with; None: observations stay as they are."""
    reported_envs: tuple[bool, ...] | None = None
    """Whether the episodes of each env count for the reported returns; None: all do. Others explore too much."""


@dataclass(frozen=True)
class MessageLimits:
    """When fragments go together: another one is recorded first, unless all would exceed one of these limits."""

    num_fragments: int = 1
    """1: each goes alone."""
    num_bytes: int = 0
    """Of the rows of all."""
    seconds: float = 0.0
    """In which all were recorded."""

    def have_room(self, num_fragments: int, num_bytes: int, seconds: float) -> bool:
        """Return whether another fragment like ``num_fragments``, which took so many bytes and seconds, may join."""
        if num_fragments >= self.num_fragments:
            return False
        growth = (num_fragments + 1) / num_fragments
        return growth * num_bytes <= self.num_bytes and growth * seconds <= self.seconds


EACH_ALONE = MessageLimits()
"""Every fragment is a message of its own."""


@dataclass(frozen=True)
class WorkerSpec:
    """One rollout worker. It can be pickled, as its functions are those of modules."""

    index: int
    seed: int
    """Seeds its envs; each of its random streams is derived from it and ``index``."""
    make_env: MakeVectorEnv
    make_policy: MakePolicy
    """Called once, and twice with ``sample_async``: a policy is used by one thread."""
    fold: Fold
    rollout: RolloutConfig
    row_writer: RowWriter | None = None
    """What writes its transitions into replay; None: they are sent."""
    callbacks: CallbackClasses | None = None
    """The user's classes with hooks for its episodes; None: there are none."""
    weights: WeightsHandle | None = None
    """Where the newest weights are, if its process can reach that memory; None: it is sent weights."""
    message: MessageLimits = EACH_ALONE
    """Which fragments it sends together, if it reads weights itself: those that it is sent wait for its calls."""
