"""The exploration keys of agents with a value for each of a finite number of actions, and their conflicts.

Defaults are RLlib 0.5.3's DQN's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from rlexp.config.keys.common import PlayableActions, ScheduledKeys, keys_without_effect
from rlexp.config.keys.env_ids import has_continuous_actions
from rlexp.config.keys.fields import RLEXP_ONLY, Conflict, CountOrZero, Fraction, Positive, Whole

EpsilonLadder = Literal["worker", "env"]

EPSILON: Final = (
    "exploration_initial_eps",
    "exploration_final_eps",
    "exploration_fraction",
    "epsilon_timesteps",
    "exploration_warmup_timesteps",
)
"""The keys of epsilon's schedule."""


class ExplorationKeys(ScheduledKeys):
    """The exploration keys of an agent with a finite number of actions and a value for each."""

    MASKS_ACTIONS = True

    per_worker_exploration: bool = False
    """Give worker i of N the constant epsilon 0.4^(1 + 7 i/(N-1)) instead of the schedule (Horgan et al. 2018)."""

    epsilon_ladder: Annotated[EpsilonLadder | None, RLEXP_ONLY] = None
    """One epsilon for each worker, or for each env of each worker, with ``per_worker_exploration``.

    Null: ``worker``, as in RLlib; ``env`` if there is only one worker, whose envs would otherwise all have 0.4.
    """

    exploration_initial_eps: Annotated[Fraction, RLEXP_ONLY] = 1.0
    """Epsilon at the start of its schedule."""

    exploration_final_eps: Fraction = 0.02
    """Epsilon at the end of its schedule."""

    exploration_fraction: Fraction = 0.1
    """Part of ``schedule_max_timesteps`` over which epsilon changes linearly from its first to its last value."""

    epsilon_timesteps: Annotated[CountOrZero | None, RLEXP_ONLY] = None
    """Sampled steps over which epsilon changes. Null: ``exploration_fraction`` of ``schedule_max_timesteps``."""

    exploration_warmup_timesteps: Annotated[CountOrZero, RLEXP_ONLY] = 0
    """Sampled steps before epsilon starts to change."""

    soft_q: bool = False
    """Draw actions with probabilities softmax(Q / ``softmax_temp``) instead of epsilon-greedy actions."""

    softmax_temp: Positive = 1.0
    """Temperature of ``soft_q``. Near 0: greedy actions. High: almost uniform actions."""

    discretize_actions: Annotated[Annotated[Whole, Field(ge=2)] | None, RLEXP_ONLY] = None
    """Number of discrete values per dimension of continuous actions, evenly spaced, both bounds included. Null: the
    env must have discrete actions."""

    @property
    def resolved_epsilon_ladder(self) -> EpsilonLadder:
        """``epsilon_ladder``; null is decided by the number of workers."""
        if self.epsilon_ladder is not None:
            return self.epsilon_ladder
        return "worker" if self.num_workers > 1 else "env"

    @property
    def evaluation_epsilon(self) -> float:
        """Epsilon of evaluation episodes that explore."""
        epsilon = self.evaluation_config.exploration_final_eps
        return self.exploration_final_eps if epsilon is None else epsilon

    @property
    def resolved_epsilon_timesteps(self) -> int:
        """``epsilon_timesteps``; null is decided by ``exploration_fraction``."""
        given = self.epsilon_timesteps
        return int(self.exploration_fraction * self.schedule_max_timesteps) if given is None else given

    @property
    def explores_by_epsilon(self) -> bool:
        """Whether workers take random actions with probability epsilon."""
        return self.explore and not self.soft_q

    @property
    def playable_actions(self) -> PlayableActions:
        """A finite number of actions, with a Q-value for each."""
        return PlayableActions(
            spaces=("Discrete",),
            needs="DQN, APEX and PQN need a Discrete one",
            hint="wrap the env so that it takes a finite number of actions",
            hint_for_box="PPO takes them, SAC only floats; discretize_actions: 5 chooses among 5 values per dimension",
        )

    @property
    def bins_per_action(self) -> int | None:
        """The agent chooses among a finite number of actions."""
        return self.discretize_actions

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        falls_back = self.evaluation_config.explore and self.evaluation_config.exploration_final_eps is None
        has_ladder = self.per_worker_exploration and not falls_back  # an evaluation may use the end of the schedule
        yield from keys_without_effect(
            (has_ladder, EPSILON, "per_worker_exploration gives each worker a constant epsilon"),
            (self.epsilon_timesteps is not None, ("exploration_fraction",), "epsilon_timesteps is given"),
            (not self.per_worker_exploration, ("epsilon_ladder",), "per_worker_exploration is false"),
            (not self.soft_q, ("softmax_temp",), "soft_q is false"),
            (self.soft_q, ("per_worker_exploration", *EPSILON), "soft_q explores instead"),
            (self.is_greedy, ("soft_q", "softmax_temp", "per_worker_exploration", *EPSILON), "explore is false"),
        )

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield continuous actions that are not discretized, as a Q-network needs a finite number."""
        if self.discretize_actions is None and has_continuous_actions(env, self.env_config):
            message = f"env {env} has continuous actions; DQN, APEX, R2D2 and PQN need discrete ones"
            hint = "PPO takes them, SAC only floats; discretize_actions: 5 chooses among 5 values per dimension"
            yield Conflict(("env",), message, hint)
