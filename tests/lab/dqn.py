"""Small networks and batches for the tests of the DQN family.

Shapes of small networks for tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.torch.device import Precision
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models.network_config import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

PLAIN_HEAD = HeadConfig(hiddens=(8,), dueling=True, noisy=False, sigma0=0.5, num_atoms=1, v_min=-10.0, v_max=10.0)

BATCH_SIZE = 32
NETWORK = QNetworkConfig(
    observation_shape=(3,),
    torso=torso_config_of(DQNConfig(model=ModelConfig(fcnet_hiddens=(16,)))),
    num_actions=4,
    head=PLAIN_HEAD,
)


def make_learner(
    seed: int = 0,
    lr: float = 1e-3,
    grad_norm_clipping: float | None = None,
    double_q: bool = True,
    target_network_update_freq: int = 10**9,
    target_counts_trained: bool = True,
    device: str = "cpu",
    precision: Precision = "float32",
    tau: float = 1.0,
) -> DQNLearner:
    config = DQNLearnerConfig(
        PiecewiseSchedule(((0, lr),)),
        1e-8,
        grad_norm_clipping,
        double_q,
        target_network_update_freq,
        target_counts_trained,
        device,
        precision,
        tau,
    )
    return DQNLearner(NETWORK, config, seed)


def make_batch(seed: int = 0, count: int = BATCH_SIZE, reward_scale: float = 1.0) -> SampleBatch:
    """Return random transitions, a fifth of them terminal."""
    rng = np.random.default_rng(seed)

    def observations() -> Array:
        return rng.normal(size=(count, *NETWORK.observation_shape)).astype(np.float32)

    return SampleBatch(
        {
            OBS: observations(),
            ACTIONS: rng.integers(NETWORK.num_actions, size=count),
            REWARDS: (reward_scale * rng.normal(size=count)).astype(np.float32),
            DISCOUNTS: np.where(rng.random(count) < 0.2, 0.0, 0.9).astype(np.float32),
            NEW_OBS: observations(),
            IMPORTANCE_WEIGHTS: rng.uniform(0.1, 1.0, size=count).astype(np.float32),
        }
    )


def read_only(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays as they come out of an object store."""
    copies = {name: array.copy() for name, array in arrays.items()}
    for array in copies.values():
        array.setflags(write=False)
    return copies
