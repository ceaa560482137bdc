"""What a worker amid its episodes depends on, beside weights: it goes on there only where that is the same."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_modules import NO_MODULES
from rlexp.envs import EnvConfig
from rlexp.json_file import plain

KEYS: Final = {
    *("num_workers", "num_envs_per_worker", "sample_batch_size", "batch_mode", "sample_async", "horizon"),
    *("observation_filter", "synchronize_filters", "clip_rewards", "gamma", "n_step", "explore", "noisy", "soft_q"),
    *("parameter_noise", "epsilon_with_noisy", "worker_side_prioritization", "seed"),
}
"""Keys that say what a worker keeps between two fragments."""


def rollout_fingerprint(env_config: EnvConfig, config: CommonConfig) -> dict[str, Any]:
    """Return the env and the keys by which workers play, as JSON has them."""
    # Where it is imported from, and how many threads step it, changes nothing in an env.
    env = asdict(replace(env_config, modules=NO_MODULES, num_threads=1))
    del env["actions"]  # which actions can be played says nothing of how they are
    told: dict[str, Any] = plain({"env": env, "config": config.model_dump(mode="json", include=KEYS)})
    return told
