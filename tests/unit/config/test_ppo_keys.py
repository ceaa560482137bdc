"""PPO's keys: what rooms that know no algorithm ask of them, which fit together, and which have no effect."""

from typing import Any

import pytest

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.ppo import PPOConfig


@pytest.mark.parametrize(
    ("normalize", "clip", "expected"),
    [(True, True, "normalized"), (True, False, "normalized"), (False, True, "clipped"), (False, False, None)],
)
def test_continuous_actions_prefers_normalize_actions(normalize: bool, clip: bool, expected: Any) -> None:
    assert PPOConfig(normalize_actions=normalize, clip_actions=clip).continuous_actions == expected


def test_continuous_actions_of_dqn_are_not_scaled() -> None:
    assert DQNConfig().continuous_actions is None
