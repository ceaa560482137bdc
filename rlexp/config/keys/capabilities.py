"""What the rooms that know no algorithm ask of an agent's keys, beside the keys that all agents have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ActionScaling = Literal["normalized", "clipped"]
"""``normalized``: -1 to 1 is scaled to the bounds of the env, and clipped to them. ``clipped``: to the bounds."""

MOST_CHECKPOINTED_BYTES: Final = 256 * 10**6
"""Replay up to this size is written into checkpoints where ``checkpoint_replay`` does not say."""


@dataclass(frozen=True)
class LearnerProcesses:
    """Several learners, each in a process of its own."""

    number: int
    """At least 2."""
    cpus: float
    """CPUs that each of them reserves."""
    gpus: float
    """GPUs that each of them reserves."""


@dataclass(frozen=True)
class ReplayNeeds:
    """What decides how much memory the replay of an agent takes when it is full."""

    capacity: int
    """Transitions."""
    capacity_key: str
    """The key under ``config`` that gives it."""
    least_capacity: int
    """Transitions, below which the agent cannot train."""
    num_shards: int
    n_step: int
    storage: str
    """Which of ``rlexp.replay.storage.STORAGES`` keeps the transitions, unless workers share memory with replay."""
    keeps_whole_observations: bool
    """Whether each transition has observations of its own, instead of frames that transitions share."""
    in_checkpoints: bool | None
    """Whether checkpoints contain it; None: where it has MOST_CHECKPOINTED_BYTES at most."""
    on_device: bool = False
    """Whether its frames are in the memory of the learner's device."""


@dataclass(frozen=True)
class FactLine:
    """A line about a running trial in the live display."""

    label: str
    facts: tuple[str, ...]
    """Texts with metrics of the trial's newest row in braces, each with one of the display's formats, such as
    ``replay {info/replay_fill:percent} full``; two metrics with ``..`` are a range. Where a line is too long, its
    last facts are left out."""
    needs: str | None = None
    """A metric without which the line is not shown."""


@dataclass(frozen=True)
class PlayableActions:
    """Which actions an algorithm can choose."""

    spaces: tuple[str, ...]
    """Classes of ``gymnasium.spaces``."""
    needs: str
    """What the message says where an env has another one."""
    hint: str
    """What a user can do then."""
    hint_for_box: str | None = None
    """The same for a Box; None: as for the others."""


@dataclass(frozen=True)
class Caution:
    """What a user may not have meant, though it can be trained."""

    key: str
    """The key under ``config`` that brings it about; without effect where the file does not give it."""
    message: str
