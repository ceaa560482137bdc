"""QNetworkConfig: the shape of a Q-network, whichever library computes it."""

from __future__ import annotations

from dataclasses import dataclass

from rlexp.models.torso_config import TorsoConfig


@dataclass(frozen=True)
class HeadConfig:
    """What lies between the torso's features and the action values."""

    hiddens: tuple[int, ...]
    """Sizes of the layers in the value and in the advantage head; ReLU."""
    dueling: bool
    noisy: bool
    """Whether the heads are made of noisy layers."""
    sigma0: float
    """Deviation of the noisy layers' noise at the start, times the root of their width."""
    num_atoms: int
    """Atoms of the distribution of returns; 1 for their mean alone."""
    v_min: float
    """The lowest atom."""
    v_max: float
    """The highest atom."""


@dataclass(frozen=True)
class QNetworkConfig:
    """The shape of a Q-network."""

    observation_shape: tuple[int, ...]
    """``(N,)``, or ``(H, W, C)`` of images."""
    num_actions: int
    torso: TorsoConfig
    head: HeadConfig
    sees_byte_vectors: bool = False
    """Whether observations are vectors of bytes, 0 to 255, which it sees as (x - 128) / 128: RAM of Atari games."""
