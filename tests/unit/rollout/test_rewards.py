from __future__ import annotations

import numpy as np
import pytest

from rlexp.rollout.recorder import clip_rewards
from rlexp.rollout.worker_spec import RewardLimits

REWARDS = [-7.0, -0.5, 0.0, 1e-50, 3.0]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (False, REWARDS),
        (True, [-1.0, -1.0, 0.0, 1.0, 1.0]),
        (2.0, [-2.0, -0.5, 0.0, 1e-50, 2.0]),
        (1.0, [-1.0, -0.5, 0.0, 1e-50, 1.0]),
        ((-1.0, 2.0), [-1.0, -0.5, 0.0, 1e-50, 2.0]),
        ((0.5, 9.0), [0.5, 0.5, 0.5, 0.5, 3.0]),
    ],
)
def test_clipping_by_hand(limits: RewardLimits, expected: list[float]) -> None:
    rewards = np.array(REWARDS)
    assert clip_rewards(rewards, limits).tolist() == expected
    assert rewards.tolist() == REWARDS
