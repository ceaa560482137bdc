"""A trained policy for a program: acts on an env's own observations, outside of training, without Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.envs.make import Env, make_env
from rlexp.envs.own_spaces import OwnSpaces, playable_config
from rlexp.envs.registry import EnvConfig
from rlexp.errors import CheckpointError, NotFiniteError, UsageError
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.runs.checkpoints.kept import find_checkpoint
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed
from rlexp.user_code.import_guard import hides_what_is_beside
from rlexp.user_code.trusted_code import TrustedCode


@dataclass(frozen=True)
class PolicyMetadata:
    """Where a policy comes from."""

    checkpoint: Path
    run: str
    """The agent: ``DQN``."""
    env: str
    iteration: int
    """Of the training, when the checkpoint was written."""
    seed: int | None
    """Of the trial."""
    explores: bool
    """Whether its actions are drawn as in an evaluation that explores; else they are greedy."""


class TrainedPolicy:
    """The policy of one checkpoint; made by :func:`rlexp.load_policy`.

    It needs neither Ray nor the run, and of torch only what its network is made of: fully connected networks are NumPy
    here. One thread or process uses it at a time; it can be pickled, and the copy acts as it does.
    """

    def __init__(self, loaded: LoadedCheckpoint, explore: bool, seed: int) -> None:
        """Raise CheckpointError where the weights are not those of the network, or not finite."""
        restored, experiment = loaded.policy(), loaded.experiment
        self.metadata = PolicyMetadata(
            checkpoint=loaded.checkpoint.path,
            run=experiment.run,
            env=experiment.env,
            iteration=loaded.checkpoint.sequence,
            seed=experiment.config.seed,
            explores=explore,
        )
        self._env_config: EnvConfig = loaded.env_config
        self._spaces = OwnSpaces.of(loaded.env_config)
        self._restored = restored
        self._seed = seed
        self._divergence = loaded.divergence(NotFiniteError("the network's outputs are NaN or infinite"))
        self._greedy = restored.filters.applied_to(restored.policy)
        self._exploring: dict[int, ActingPolicy] = {}
        """By the number of observations: each explores with a random stream of its own."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Of the observations that ``act`` takes: those of the env itself; of Atari under ``deepmind``, make_env's."""
        return self._spaces.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Of the actions that ``act`` returns: the env's own."""
        return self._spaces.action_space

    @property
    def env_id(self) -> str:
        """The env that it was trained in, as the experiment names it."""
        return self.metadata.env

    def act(self, observation: Any) -> Any:
        """Return the action for one observation of the env, to be given to ``env.step``.

        What training does to observations and actions is done here too: images are scaled, Dict, Tuple and Discrete
        observations become vectors, the observation filter is applied, discretised actions become values of the env's
        Box, and continuous ones are brought within its bounds.

        Raises:
            UsageError: what was expected and what was given, where it is no observation of ``observation_space``.
            CheckpointError: where the network's outputs are not finite.

        """
        return self._act(self._spaces.prepared(observation))[0]

    def act_batch(self, observations: Any) -> Array:
        """Return the actions ``[B, ...]`` for B observations, as ``act`` does for one.

        Observations are an array ``[B, ...]``, a list of them, or for Dict and Tuple what a vector env returns.
        """
        return self._act(self._spaces.prepared_batch(observations))

    def make_env(self, render_mode: str | None = None) -> Env:
        """Make one env to play: with the ``env_config`` and ``horizon`` of the training, and of Atari its frames.

        Its observations are those that ``act`` takes, and its actions those that ``act`` returns.
        """
        return make_env(playable_config(self._env_config), render_mode)

    def __repr__(self) -> str:
        about = self.metadata
        return f"<TrainedPolicy {about.run} {about.env}, iteration {about.iteration}, {about.checkpoint}>"

    def _act(self, prepared: Array) -> Array:
        if not len(prepared):
            raise UsageError("there are no observations to act on", "give at least one")
        player = self._player(len(prepared)) if self.metadata.explores else self._greedy
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                actions = player.compute_actions(prepared)
        except NotFiniteError as error:
            raise CheckpointError(self._divergence.message, self._divergence.hint) from error
        return self._spaces.own_actions(actions)

    def _player(self, num_observations: int) -> ActingPolicy:
        if num_observations not in self._exploring:
            seed = derive_seed(self._seed, "explore", num_observations)
            restored = self._restored
            exploring = restored.policies.exploring_player(restored.policy, num_observations, seed)
            self._exploring[num_observations] = restored.filters.applied_to(exploring)
        return self._exploring[num_observations]


@hides_what_is_beside
def load_trained_policy(path: Path, explore: bool, seed: int | None, trusted: TrustedCode) -> TrainedPolicy:
    """Return the policy of a checkpoint, or of the best one of a trial or run; see :func:`rlexp.load_policy`."""
    loaded = LoadedCheckpoint.load(find_checkpoint(path, trusted), trusted=trusted)
    return TrainedPolicy(loaded, explore, loaded.seed("policy", seed))
