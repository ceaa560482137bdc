"""The plainest RolloutConfig; tests replace what they are about."""

from rlexp.rollout.settings import RolloutConfig

PLAIN = RolloutConfig(
    fragment_length=10,
    n_step=1,
    gamma=0.9,
    clip_rewards=False,
    batch_mode="truncate_episodes",
    sample_async=False,
    observation_filter=None,
)
