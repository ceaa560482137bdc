"""The policies of DDPG, TD3 and APEX_DDPG: networks, noise, and reported episodes. No torch is imported here."""

from __future__ import annotations

import math
from functools import cached_property

from rlexp.agents.ddpg.exploration import NoiseExploration
from rlexp.agents.ddpg.policy import PolicyNetworkPolicies
from rlexp.agents.dqn.exploration import epsilon_ladder
from rlexp.agents.dqn.players import ladder_places
from rlexp.config.keys.ddpg import DDPGConfig
from rlexp.envs.spaces import is_continuous
from rlexp.errors import UsageError
from rlexp.models.action_distributions import SquashedActions
from rlexp.models.network_config import LayersConfig
from rlexp.schedules import LinearSchedule


class DDPGPolicies(PolicyNetworkPolicies[DDPGConfig]):
    """The policies of DDPG, TD3 and APEX_DDPG."""

    @cached_property
    def actions(self) -> SquashedActions:
        space = self.action_space
        if not is_continuous(space):
            raise UsageError(f"DDPG and TD3 cannot choose actions of the space {space}", "use DQN, PPO or SAC")
        return SquashedActions(space.shape, str(space.dtype))

    @property
    def layers(self) -> tuple[LayersConfig, LayersConfig]:
        config = self.config
        return (
            LayersConfig(config.actor_hiddens, config.actor_hidden_activation),
            LayersConfig(config.critic_hiddens, config.critic_hidden_activation),
        )

    def exploration(self, index: int, num_players: int, seed: int) -> NoiseExploration:
        config = self.config
        is_ou = config.exploration_noise_type == "ou"
        return NoiseExploration(
            seed=seed,
            random_timesteps=config.pure_exploration_steps,
            scale=self.scale(index, num_players),
            sigma=config.exploration_ou_sigma if is_ou else config.exploration_gaussian_sigma,
            base=config.exploration_ou_noise_scale if is_ou else None,
            theta=config.exploration_ou_theta,
        )

    def scale(self, index: int, num_players: int) -> LinearSchedule:
        """Return the factor of the noise of player ``index``, over the env steps of all players."""
        config = self.config
        if config.per_worker_exploration:
            factor = self._ladder(num_players)[index]
            return LinearSchedule(factor, factor, 0)
        first, last = config.exploration_initial_scale, config.exploration_final_scale
        return LinearSchedule(first, last, config.exploration_scale_timesteps)

    def reported_envs(self, index: int, num_players: int) -> tuple[bool, ...] | None:
        """Return whether the player is in the third with the least noise; None without ``per_worker_exploration``."""
        if not self.config.per_worker_exploration:
            return None
        ladder = sorted(self._ladder(num_players))
        limit = ladder[math.ceil(len(ladder) / 3) - 1]
        return (self._ladder(num_players)[index] <= limit,) * self.config.num_envs_per_worker

    def _ladder(self, num_players: int) -> tuple[float, ...]:
        """Return each player's factor; any number of first players is spread over the whole ladder."""
        factors = epsilon_ladder(num_players)
        return tuple(factors[place] for place in ladder_places(num_players))
