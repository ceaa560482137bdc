"""Plays a checkpoint: needs neither the run it came from nor Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from pydantic import TypeAdapter, ValidationError

from rlexp.agents.evaluator import MAX_ENVS, MAX_STEPS, film_with
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.agents.registry import AGENTS
from rlexp.checkpoint import Checkpoint, read_checkpoint, refuse_foreign, refuse_modules_within, run_of
from rlexp.checkpoint.manifest import MANIFEST
from rlexp.config.dialect_table import renamed_keys
from rlexp.config.experiment import Experiment
from rlexp.config.user_modules import UserModules, modules_of, with_current_folder
from rlexp.envs import EnvConfig, env_config_of, make_vector_env
from rlexp.errors import CheckpointError
from rlexp.metrics.bootstrap import bootstrap_interval
from rlexp.rollout.evaluation import Acting, play_episodes
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
    player = _Player.load(path)
    env = make_vector_env(player.env_config, min(num_episodes, MAX_ENVS))
    try:
        acting = player.policy(env)
        returns, lengths = play_episodes(acting, env, num_episodes, derive_seed(seed, "evaluation"), MAX_STEPS)
    finally:
        env.close()
    interval = bootstrap_interval(returns, np.random.default_rng(seed))
    experiment, iteration = player.experiment, player.checkpoint.sequence
    return Evaluation(path, experiment.run, experiment.env, iteration, returns, lengths, interval)


def film_checkpoint(path: Path, seed: int) -> tuple[Iterator[Array], float]:
    """Return the pictures ``[H, W, 3]`` of one greedy episode, taken while it is played, and how many make a second.

    Raises CheckpointError where ``path`` holds no good checkpoint, UsageError where its env cannot be filmed.
    """
    player = _Player.load(path)
    probe = make_vector_env(player.env_config, 1)
    acting = player.policy(probe)
    probe.close()
    return film_with(acting, player.env_config, derive_seed(seed, "film"))


@dataclass(frozen=True)
class _Player:
    """A checkpoint, and what it was trained in."""

    checkpoint: Checkpoint
    experiment: Experiment
    env_config: EnvConfig

    @staticmethod
    def load(path: Path) -> _Player:
        checkpoint = read_checkpoint(path)
        experiment, modules = _training_of(checkpoint, path)
        named = (*modules.imports, *modules_of(experiment.env))
        if named:  # whoever can write these names could have us import anything
            for place in (path.resolve(), path / MANIFEST):
                refuse_foreign(place)
            refuse_modules_within(run_of(path), UserModules(named, modules.folders))
        return _Player(checkpoint, experiment, env_config_of(experiment.env, experiment.config, modules))

    def policy(self, env: VectorEnv[Any, Any, Any]) -> Acting:
        """Return the checkpoint's greedy policy for ``env``'s spaces."""
        config, arrays = self.experiment.config, self.checkpoint.arrays
        observation_space, action_space = env.single_observation_space, env.single_action_space
        policy = AGENTS[self.experiment.run].make_policy(config, observation_space, action_space)
        try:
            policy.set_weights(arrays["weights"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.checkpoint.path} holds no weights of its own network: {error}") from error
        return ObservationFilters(config, observation_space, arrays).applied_to(policy)


def _training_of(checkpoint: Checkpoint, path: Path) -> tuple[Experiment, UserModules]:
    """Return the experiment that a checkpoint is of, and the user's modules that it may import."""
    experiment: TypeAdapter[Experiment] = TypeAdapter(Experiment)
    strings = TypeAdapter(tuple[str, ...])
    try:
        imports = strings.validate_python(checkpoint.metadata.get("imports", ()))
        folders = strings.validate_python(checkpoint.metadata.get("module_folders", ()))
        modules = UserModules(imports, with_current_folder(folders))
        return experiment.validate_python(_by_current_names(checkpoint.metadata["experiment"])), modules
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(f"checkpoint {path} does not say how it was trained: {error}") from error


def _by_current_names(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment with the keys of its config by their current names: an older checkpoint has the old ones."""
    renamed = renamed_keys(experiment["run"])
    config = {renamed.get(("config", name), (name,))[-1]: value for name, value in experiment["config"].items()}
    return {**experiment, "config": config}
