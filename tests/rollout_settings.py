"""The plainest RolloutConfig, which tests replace what they are about in, and fleets of workers that are there."""

from collections.abc import Sequence

from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.rollout_config import RolloutConfig
from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import Actor, TaskPool

PLAIN = RolloutConfig(
    fragment_length=10,
    n_step=1,
    gamma=0.9,
    clip_rewards=False,
    batch_mode="truncate_episodes",
    sample_async=False,
    observation_filter=None,
)


def fleet_of(pool: TaskPool, workers: Sequence[Actor[RolloutWorker]]) -> Fleet:
    """Return a fleet of ``workers`` that replaces none of them."""
    limits = FleetLimits(max_restarts=0, sample_timeout_s=60.0)
    return Fleet(pool, lambda index, attempt: workers[index], len(workers), limits)
