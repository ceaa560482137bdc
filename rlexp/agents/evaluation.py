"""Plays a checkpoint: needs neither the run it came from nor Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rlexp.agents.evaluator import MAX_ENVS, MAX_STEPS
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.agents.registry import AGENTS
from rlexp.checkpoint import Checkpoint, read_checkpoint
from rlexp.config.experiment import Experiment
from rlexp.envs import env_config_of, make_vector_env
from rlexp.errors import CheckpointError
from rlexp.metrics.bootstrap import bootstrap_interval
from rlexp.rollout.evaluation import play_episodes
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed


@dataclass(frozen=True)
class Evaluation:
    """How a checkpoint did over some greedy episodes."""

    checkpoint: Path
    run: str
    env: str
    iteration: int
    returns: Array
    """Undiscounted returns ``[N]``."""
    lengths: Array
    """Env steps ``[N]``."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the mean return."""


def evaluate_checkpoint(path: Path, num_episodes: int, seed: int) -> Evaluation:
    """Play ``num_episodes`` greedy episodes; raises CheckpointError where ``path`` holds no good checkpoint."""
    checkpoint = read_checkpoint(path)
    experiment = _experiment_of(checkpoint, path)
    imports = tuple(checkpoint.metadata.get("imports", ()))
    env_config = env_config_of(experiment.env, experiment.config, imports)
    env = make_vector_env(env_config, min(num_episodes, MAX_ENVS))
    try:
        observation_space, action_space = env.single_observation_space, env.single_action_space
        policy = AGENTS[experiment.run].make_policy(experiment.config, observation_space, action_space)
        policy.set_weights(checkpoint.arrays["weights"])
        acting = ObservationFilters(experiment.config, observation_space, checkpoint.arrays).applied_to(policy)
        returns, lengths = play_episodes(acting, env, num_episodes, derive_seed(seed, "evaluation"), MAX_STEPS)
    finally:
        env.close()
    interval = bootstrap_interval(returns, np.random.default_rng(seed))
    iteration = checkpoint.state["iteration"]
    return Evaluation(path, experiment.run, experiment.env, iteration, returns, lengths, interval)


def _experiment_of(checkpoint: Checkpoint, path: Path) -> Experiment:
    adapter: TypeAdapter[Experiment] = TypeAdapter(Experiment)
    try:
        return adapter.validate_python(checkpoint.metadata["experiment"])
    except (KeyError, ValidationError) as error:
        raise CheckpointError(f"checkpoint {path} does not say how it was trained: {error}") from error
