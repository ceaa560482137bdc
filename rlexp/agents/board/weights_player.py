"""Plays evaluation episodes with weights that a trainer has put on a board, wherever it trains.

Neither Ray is imported here nor, where the network is made of fully connected layers, torch.
"""

from __future__ import annotations

from typing import Final

import gymnasium as gym
import numpy as np

from rlexp.agents.dqn.exploration import EpsilonGreedyPolicy
from rlexp.agents.dqn.players import q_network_config
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.evaluator import MAX_STEPS, Evaluator, evaluation_seed
from rlexp.agents.observation_filters import GROUP as FILTERS
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_modules import UserModules
from rlexp.envs import env_config_of, spaces_of
from rlexp.errors import NotFiniteError, TrialError
from rlexp.joined_actors.weights_message import Newer
from rlexp.rollout.evaluation import ActingPolicy, EvaluationLimits, PlayedEpisodes, ShouldStop
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import Array

TIMEOUT_S: Final = 600.0
"""Seconds of an evaluation, at most: an episode may have no end."""


class WeightsPlayer:
    """Owns the policy of one experiment, which plays with the weights that it is given; used by one thread."""

    def __init__(self, experiment: Experiment, modules: UserModules) -> None:
        """Make the env once, to see its spaces; raises EnvError where that fails."""
        config = experiment.config
        assert isinstance(config, DQNConfig)  # no other agents have actors that join
        self._config = config
        self._env_config = env_config_of(experiment.env, config, modules)
        self._observation_space, action_space = spaces_of(self._env_config)
        assert isinstance(action_space, gym.spaces.Discrete)
        self._num_actions = int(action_space.n)
        network = q_network_config(config, self._observation_space, action_space, modules)
        self._policy = DQNPolicy(network)

    def play(self, newer: Newer, num_episodes: int, should_stop: ShouldStop) -> PlayedEpisodes:
        """Return whole episodes as ``evaluation_config`` has them: fewer where ``should_stop`` or TIMEOUT_S end them.

        Raises TrialError where the policy cannot act with these weights, and what the env raises.
        """
        limits = EvaluationLimits(MAX_STEPS, TIMEOUT_S, should_stop)
        seed = evaluation_seed(self._config.seed or 0, newer.version)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                self._policy.set_weights(newer.weights)
                return self._evaluator(newer.moments).play(num_episodes, seed, limits)
        except (KeyError, ValueError, RuntimeError, NotFiniteError) as error:
            raise TrialError(f"weights {newer.version} cannot be evaluated: {error}") from error

    def _evaluator(self, moments: Moments | None) -> Evaluator:
        """Return what plays; observations are standardised by ``moments``, where the experiment has them."""
        arrays = {} if moments is None else {FILTERS: _of_one_filter(moments)}
        filters = ObservationFilters(self._config, self._observation_space, arrays, num_players=1)
        return Evaluator(self._env_config, self._config.evaluation_config, filters, self._policy, self._exploring)

    def _exploring(self, num_envs: int, seed: int) -> ActingPolicy:
        epsilons = np.full(num_envs, self._config.evaluation_epsilon)
        return EpsilonGreedyPolicy(self._policy, epsilons, self._num_actions, seed)


def _of_one_filter(moments: Moments) -> dict[str, Array]:
    return {
        "count": np.array([moments.count]),
        "mean": moments.mean[np.newaxis],
        "squares": moments.squares[np.newaxis],
    }
