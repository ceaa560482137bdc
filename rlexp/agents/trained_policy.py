"""The policy of a checkpoint in a program of the user's: it acts on an env's own observations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.agents.policies import memory_in
from rlexp.compare.table import html_with_curve
from rlexp.envs.make import make_own_env
from rlexp.envs.own_spaces import OwnSpaces, playable_config
from rlexp.envs.registry import Env, EnvConfig
from rlexp.errors import CheckpointError, NotFiniteError, UsageError
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.runs.kept_checkpoints import find_checkpoint
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed
from rlexp.user_code.import_guard import hides_what_is_beside
from rlexp.user_code.trusted_code import TrustedCode


@dataclass(frozen=True)
class PolicyMetadata:
    """The origin of a policy."""

    checkpoint: Path
    run: str
    """The agent, such as ``DQN``."""
    env: str
    iteration: int
    """The training iteration after which the checkpoint was written."""
    seed: int | None
    """The seed of the trial."""
    explores: bool
    """Whether its actions are drawn as in an evaluation that explores; otherwise they are greedy."""


class TrainedPolicy:
    """The policy of one checkpoint; made by :func:`rlexp.load_policy`.

    It needs neither Ray nor the run. Fully connected networks run in NumPy, others in torch. One thread or process uses
    it at a time. It can be pickled, and the copy acts in the same way.
    """

    def __init__(self, loaded: LoadedCheckpoint, explore: bool, seed: int) -> None:
        """Raise CheckpointError if the weights belong to another network or are not finite."""
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
        self._spaces = OwnSpaces.of(loaded.env_config, restored.policies.observation_space)
        self._restored = restored
        self._seed = seed
        self._divergence = loaded.divergence(NotFiniteError("the network's outputs are NaN or infinite"))
        self._greedy = restored.filters.applied_to(restored.policy)
        self._memory = memory_in(restored.policy)
        self._exploring: dict[int, ActingPolicy] = {}
        """For each number of observations, the policy that explores with a random stream of its own."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations that ``act`` takes: the env's own; for Atari under ``deepmind``, make_env's."""
        return self._spaces.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions that ``act`` returns: the env's own."""
        return self._spaces.action_space

    @property
    def env_id(self) -> str:
        """The env of its training, as the experiment names it."""
        return self.metadata.env

    @property
    def is_recurrent(self) -> bool:
        """Whether the policy remembers its episode, so that ``act`` takes a state and returns the next one."""
        return self._memory is not None

    def act(self, observation: Any, state: Any = None, action_mask: Any = None, reward: float = 0.0) -> Any:
        """Return the action for one observation, for ``env.step``; with masks, one that ``action_mask`` allows.

        A Dict observation may have the mask in it.
        What training does to observations and actions is done here too: images are scaled, Dict, Tuple and Discrete
        observations become vectors, the observation filter is applied, discretised actions become values of the env's
        Box, and continuous ones are brought within its bounds.

        A recurrent policy (``is_recurrent``) returns the action and its state after it. Give that state with the next
        observation, and None as an episode starts. ``reward`` is what the env paid for the action before; it matters
        only with ``lstm_use_prev_reward``.

        Raises:
            UsageError: if it is not in ``observation_space``, or a mask is missing; says what was expected and given.
            CheckpointError: if the network's outputs are not finite.

        """
        prepared = self._spaces.prepared(observation, action_mask)
        if self._memory is None and state is None:
            return self._act(prepared)[0]
        actions, states = self._remembered(prepared, None if state is None else np.asarray(state)[None], reward)
        return actions[0], states[0]

    def act_batch(self, observations: Any, states: Any = None, action_masks: Any = None, rewards: Any = 0.0) -> Any:
        """Return the actions ``[B, ...]`` for B observations, and ``action_masks [B, A]``, as ``act`` does for one.

        Observations are an array ``[B, ...]`` or a list; for Dict and Tuple, the form that a vector env returns.
        A recurrent policy takes and returns states ``[B, S]``; a state of zeros starts an episode.
        """
        prepared = self._spaces.prepared_batch(observations, action_masks)
        if self._memory is None and states is None:
            return self._act(prepared)
        return self._remembered(prepared, states, rewards)

    def make_env(self, render_mode: str | None = None) -> Env:
        """Make one env to play in, with the ``env_config``, ``horizon`` and (for Atari) frames of the training.

        ``act`` takes its observations and returns its actions. An env of several agents is PettingZoo's own:
        ``{agent: policy.act(observations[agent]) for agent in env.agents}``.
        """
        return make_own_env(playable_config(self._env_config), render_mode)

    def __repr__(self) -> str:
        about = self.metadata
        return f"<TrainedPolicy {about.run} {about.env}, iteration {about.iteration}, {about.checkpoint}>"

    def _repr_html_(self) -> str:
        """Return what it is and what it acts on, and the curve of its trial if this is there, for a notebook."""
        about = self.metadata
        facts = {
            "agent": about.run,
            "env": about.env,
            "checkpoint": str(about.checkpoint),
            "observations, actions": f"{self.observation_space}, {self.action_space}",
        }
        return html_with_curve(facts, about.checkpoint.parent)

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

    def _remembered(self, prepared: Array, states: Any, rewards: Any) -> tuple[Array, Array]:
        """Return actions for ``prepared [B, ...]``, and the states after them."""
        memory = self._memory
        if memory is None:
            raise UsageError("a state was given, but this policy has no memory", "call act without a state")
        shape = len(prepared), memory.packed_size
        given = np.zeros(shape, np.float32) if states is None else np.asarray(states)
        if given.shape != shape or given.dtype != np.float32:
            expected = f"{memory.packed_size} numbers for each observation, float32"
            hint = "give what act returned for the observation before, or None as an episode starts"
            raise UsageError(f"state: expected {expected}; given shape {given.shape[1:]}, {given.dtype}", hint)
        memory.unpack(given, np.broadcast_to(np.asarray(rewards, np.float32), len(prepared)))
        actions = self._act(prepared)
        return actions, memory.packed()

    def _player(self, num_observations: int) -> ActingPolicy:
        if num_observations not in self._exploring:
            seed = derive_seed(self._seed, "explore", num_observations)
            exploring = self._restored.policies.exploring_player(self._restored.policy, num_observations, seed)
            self._exploring[num_observations] = self._restored.filters.applied_to(exploring)
        return self._exploring[num_observations]


@hides_what_is_beside
def load_trained_policy(path: Path, explore: bool, seed: int | None, trusted: TrustedCode) -> TrainedPolicy:
    """Return the policy of a checkpoint, or of the best checkpoint of a trial or run; see :func:`rlexp.load_policy`."""
    loaded = LoadedCheckpoint.load(find_checkpoint(path, trusted), trusted=trusted)
    return TrainedPolicy(loaded, explore, loaded.seed("policy", seed))
