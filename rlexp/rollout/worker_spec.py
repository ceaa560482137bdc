"""The settings from which a rollout worker is built, in any process. This module imports neither torch nor Ray."""

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
"""True: the sign. False: unchanged. A number x: clipped to [-x, x]. A pair: clipped to [low, high]."""


class RowWriter(Protocol):
    """Puts rows where replay finds them, so that the worker need not send them."""

    def write(self, batch: SampleBatch) -> WrittenRows:
        """Write ``batch [B]`` and return the place of its rows."""
        ...


@dataclass(frozen=True)
class RolloutConfig:
    """How a worker samples, for any algorithm."""

    fragment_length: int
    """Steps per env and fragment (``sample_batch_size``)."""
    clip_rewards: RewardLimits
    """How the learner sees rewards; episode returns are never clipped."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"]
    """Whether ``sample`` returns all recorded steps, or whole episodes only."""
    sample_async: bool
    """Whether the next fragment is recorded while rows of this one are computed and sent."""
    observation_filter: Moments | None = None
    """The moments that a MeanStdFilter starts with; None: observations stay as they are."""
    reported_envs: tuple[bool, ...] | None = None
    """Whether the episodes of each env count for the reported returns; None: all do. Other envs explore too much."""


@dataclass(frozen=True)
class MessageLimits:
    """Limits within which fragments are sent together: another one is recorded unless all would exceed a limit."""

    num_fragments: int = 1
    """Most fragments; 1: each is sent alone."""
    num_bytes: int = 0
    """Most bytes of all rows."""
    seconds: float = 0.0
    """Most seconds in which all were recorded."""

    def have_room(self, num_fragments: int, num_bytes: int, seconds: float) -> bool:
        """Return whether another fragment like these, which took so many bytes and seconds, may join them."""
        if num_fragments >= self.num_fragments:
            return False
        growth = (num_fragments + 1) / num_fragments
        return growth * num_bytes <= self.num_bytes and growth * seconds <= self.seconds


EACH_ALONE = MessageLimits()
"""Every fragment is a message of its own."""


@dataclass(frozen=True)
class WorkerSpec:
    """The settings of one rollout worker. It can be pickled, as its functions are module functions."""

    index: int
    seed: int
    """Seed of its envs; each random stream is derived from it and ``index``."""
    make_env: MakeVectorEnv
    make_policy: MakePolicy
    """Called once, or twice with ``sample_async``, as each policy is used by one thread."""
    fold: Fold | None
    """Makes rows of its steps; None if rows are something else."""
    rollout: RolloutConfig
    row_writer: RowWriter | None = None
    """Writes its transitions into replay; None: they are sent."""
    callbacks: CallbackClasses | None = None
    """The user's classes with hooks for its episodes; None: no callbacks."""
    weights: WeightsHandle | None = None
    """The place of the newest weights, if its process can reach that memory; None: weights are sent to it."""
    message: MessageLimits = EACH_ALONE
    """The limits of fragments that it sends together, if it reads weights itself. Sent weights wait for its calls."""
