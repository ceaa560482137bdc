"""A checkpoint read back as what it is of: its experiment, its env and its policy; needs neither its run nor Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from pydantic import TypeAdapter, ValidationError

from rlexp.agents.observation_filters import GROUP as FILTERS
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.agents.registry import policies_of
from rlexp.checkpoint import Checkpoint, read_checkpoint
from rlexp.checkpoint.contents import MANIFEST
from rlexp.config.keys.agents import experiment_class, find_agent
from rlexp.config.keys.experiment import Experiment
from rlexp.config.rllib_compat.table import renamed_keys
from rlexp.envs import EnvConfig, env_config_of, spaces_of
from rlexp.errors import CheckpointError, NotFiniteError
from rlexp.policy import Policy
from rlexp.runs.trust import refuse_foreign, run_of
from rlexp.seeding import derive_seed
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, Named, TrustedCode

WEIGHTS = "weights"
"""The group of a checkpoint's arrays that a policy acts with."""


@dataclass(frozen=True)
class RestoredPolicy:
    """The policy of a checkpoint, and what it was trained to see and to do."""

    policy: Policy
    filters: ObservationFilters
    """How observations are standardised before the policy sees them."""
    observation_space: gym.Space[Any]
    """Of what the policy sees: one of its env's observations, prepared."""
    action_space: gym.Space[Any]
    """Of what the policy chooses."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint, and what it was trained in."""

    checkpoint: Checkpoint
    experiment: Experiment
    env_config: EnvConfig

    @staticmethod
    def load(path: Path, explore: bool | None = None, trusted: TrustedCode = NOTHING_ALLOWED) -> LoadedCheckpoint:
        """Read a checkpoint; ``explore`` replaces that of its ``evaluation_config``.

        ``trusted`` has the modules and classes that the caller names.

        Raises CheckpointError where ``path`` holds no good checkpoint, ResumeError where it names code that this user
        has neither trained with nor allowed.
        """
        checkpoint = read_checkpoint(path)
        experiment, named = _training_of(checkpoint, path)
        if explore is not None:
            experiment = _with_explore(experiment, explore)
        modules = trusted.decided(named)
        if modules.decided:  # who can write the names could choose others of this user's
            for place in (path.resolve(), path / MANIFEST):
                refuse_foreign(place)
        return LoadedCheckpoint(checkpoint, experiment, env_config_of(experiment.env, experiment.config, modules))

    def seed(self, stream: str, given: int | None) -> int:
        """Return the seed of a stream: as in the run that wrote the checkpoint, unless another one is given."""
        own = self.experiment.config.seed
        if given is None and own is not None:
            return derive_seed(own, stream, self.checkpoint.sequence)
        return derive_seed(given or 0, stream)

    def policy(self) -> RestoredPolicy:
        """Return its policy; raises CheckpointError where the weights are those of another network, or not finite."""
        self.checkpoint.check_numbers(WEIGHTS, FILTERS)
        observation_space, action_space = spaces_of(self.env_config)
        policy = policies_of(self.experiment).make_policy(
            self.experiment.config, observation_space, action_space, self.env_config.modules
        )
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                policy.set_weights(self.checkpoint.arrays[WEIGHTS])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.checkpoint.path} holds no weights of its own network: {error}") from error
        filters = ObservationFilters(self.experiment.config, observation_space, self.checkpoint.arrays)
        return RestoredPolicy(policy, filters, observation_space, action_space)

    @contextmanager
    def errors_of_weights(self) -> Iterator[None]:
        """Name the largest weight where what the policy computes in the body is not finite."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                yield
        except NotFiniteError as error:
            raise self.divergence(error) from error

    def divergence(self, error: NotFiniteError) -> CheckpointError:
        """Return what a policy's outputs that are not finite mean; names the largest weight."""
        largest = {name: np.abs(array).max(initial=0) for name, array in self.checkpoint.arrays[WEIGHTS].items()}
        name = max(largest, key=largest.__getitem__)
        return CheckpointError(
            f"checkpoint {self.checkpoint.path}: {error.message}; of its weights, {WEIGHTS}/{name} has the largest,"
            f" {largest[name]:.3g}",
            "the training diverged, or the file was changed; use an earlier checkpoint",
        )


def _with_explore(experiment: Experiment, explore: bool) -> Experiment:
    config = experiment.config
    evaluation = config.evaluation_config.model_copy(update={"explore": explore})
    return experiment.model_copy(update={"config": config.model_copy(update={"evaluation_config": evaluation})})


def _training_of(checkpoint: Checkpoint, path: Path) -> tuple[Experiment, Named]:
    """Return the experiment that a checkpoint is of, and the code that it names."""
    strings = TypeAdapter(tuple[str, ...])
    try:
        imports = strings.validate_python(checkpoint.metadata.get("imports", ()))
        folders = strings.validate_python(checkpoint.metadata.get("module_folders", ()))
        experiment = checkpoint.metadata["experiment"]
        if find_agent(experiment["run"]) is None:
            raise _of_unknown_agent(path, experiment["run"])
        current = _by_current_names(experiment)
        trained = experiment_class(experiment["run"]).model_validate(current)
        return trained, Named(run_of(path), imports, folders, [trained])
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(f"checkpoint {path} does not say how it was trained: {error}") from error


def _of_unknown_agent(path: Path, run: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is of the agent {run}, which is not installed here",
        "install the package that brings it, in the version that trained it",
    )


def _by_current_names(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment with the keys of its config by their current names: an older checkpoint has the old ones."""
    renamed = renamed_keys(experiment["run"])
    config = {renamed.get(("config", name), (name,))[-1]: value for name, value in experiment["config"].items()}
    return {**experiment, "config": config}
