"""DQN's keys and defaults: RLlib 0.5.3's unless a docstring says otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.exploration_keys import ExplorationKeys
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Count,
    CountOrZero,
    KeyGroup,
    LayerSizes,
    Positive,
    PositiveFraction,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.replay_keys import ReplayKeys


class OptimizerConfig(KeyGroup):
    """How experience moves. DQN samples, stores and learns in turn, and has no keys here."""


class DQNKeys(ReplayKeys, ExplorationKeys):
    """The keys of DQN, and the meaning of null for them."""

    num_workers: CountOrZero = 0
    sample_batch_size: Count = 4
    lr: Positive = 5e-4
    train_batch_size: Count = 32
    grad_norm_clipping: Positive | None = 40.0
    timesteps_per_iteration: CountOrZero | None = 1000
    min_iter_time_s: PositiveOrZero | None = 1.0

    learner_precision: Annotated[Literal["float32", "tf32", "bfloat16"], RLEXP_ONLY] = "float32"
    """Precision of the learner's matrix products and convolutions. Weights, losses, Adam and the workers stay in
    float32. ``tf32``: on a GPU, factors rounded to 10 bits. ``bfloat16``: factors and outputs rounded to 7 bits; on a
    CPU without instructions for it (x86: avx512_bf16 or amx_bf16) slower than ``float32``."""

    double_q: bool = True
    """Double Q-learning: the online network chooses the next action, the target network gives its value (van Hasselt et
    al. 2016)."""

    dueling: bool = True
    """Dueling network: separate heads for the state value and the advantages (Wang et al. 2016)."""

    hiddens: LayerSizes = (256,)
    """Sizes of the layers in each head, after the model. ``[]``: none."""

    noisy: bool = False
    """Explore by noise in the layers of the heads (Fortunato et al. 2018). Every epsilon is then 0, unless
    ``epsilon_with_noisy`` is true."""

    epsilon_with_noisy: Annotated[bool, RLEXP_ONLY] = False
    """Explore by epsilon as well as by ``noisy``, as RLlib does for ``exploration_config`` beside ``noisy``."""

    sigma0: Positive = 0.5
    """Initial standard deviation of the noise of ``noisy`` layers, before division by the root of their width."""

    parameter_noise: bool = False
    """Explore by noise on all weights of the network, in addition to epsilon (Plappert et al. 2018).

    The standard deviation of the noise is adapted until the noise changes about as many actions as epsilon does. New
    noise is drawn at each episode of a worker's first environment, for all of its environments.
    """

    parameter_noise_initial_stddev: Annotated[Positive, RLEXP_ONLY] = 1.0
    """Initial standard deviation of ``parameter_noise``."""

    num_atoms: Count = 1
    """Number of atoms of the distribution of returns (Bellemare et al. 2017). 1: learn only its mean."""

    v_min: float = -10.0
    """Lowest atom of the distribution of returns."""

    v_max: float = 10.0
    """Highest atom of the distribution of returns."""

    n_step: Count = 1
    """Number of rewards added up in one transition before bootstrapping; never across the end of an episode."""

    target_network_update_freq: CountOrZero = 500
    """Steps between two updates of the target network: sampled steps for DQN, trained steps for APEX. 0: it is updated
    after each update of the online network."""

    tau: PositiveFraction = 1.0
    """Share of the way to the online network's weights that an update moves the target network's. 1: a copy.

    With less, it follows slowly: ``target_network_update_freq: 0`` goes with it (Lillicrap et al. 2016).
    """

    optimizer: OptimizerConfig = defaults_of(OptimizerConfig)
    """How experience moves."""

    board: Annotated[BoardConfig, RLEXP_ONLY] = defaults_of(BoardConfig)
    """How actors join the trial over a board, with ``rlexp run --board URL``."""
