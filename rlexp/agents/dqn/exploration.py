"""How a DQN policy explores: ε-greedy with an ε for each worker or env, by the softmax of its values, or with noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlexp.models.network_config import Masking
from rlexp.rollout.evaluation import ActingPolicy, WrappedPolicy
from rlexp.sample_batch import Array
from rlexp.schedules import LinearSchedule, derive_seed

STEPS_DRAWN_AHEAD = 64
"""Number of steps for which random actions are drawn at once."""


@dataclass(frozen=True)
class ConstantEpsilon:
    """A fixed ε per env, as in Ape-X."""

    values: tuple[float, ...]

    def epsilons(self, num_steps_sampled: int) -> Array:
        """Return ε per env ``[M]``."""
        return self._values

    @cached_property
    def _values(self) -> Array:
        return np.asarray(self.values)


@dataclass(frozen=True)
class AnnealedEpsilon:
    """One ε for all envs, which follows a schedule over the env steps of all workers."""

    schedule: LinearSchedule
    warmup_timesteps: int
    """Env steps during which ε keeps its first value before the schedule begins."""
    num_envs: int

    def epsilons(self, num_steps_sampled: int) -> Array:
        """Return ε per env ``[M]``."""
        t = num_steps_sampled - self.warmup_timesteps
        return np.full(self.num_envs, self.schedule.value(t) if t >= 0 else self.schedule.initial)


EpsilonSchedule = ConstantEpsilon | AnnealedEpsilon
"""Its ``epsilons`` are the probabilities of a random action, after all workers together have sampled so many steps."""


@dataclass(frozen=True)
class PolicyExploration:
    """How the policy of one worker explores."""

    epsilon: EpsilonSchedule
    seed: int
    worker_index: int
    softmax_temp: float | None = None
    """Actions are drawn from softmax(Q / ``softmax_temp``); None: they are greedy."""
    parameter_noise_stddev: float | None = None
    """Standard deviation of parameter noise at the start; None: no parameter noise."""

    def seed_of(self, stream: str) -> int:
        """Return the seed of one of the worker's random streams."""
        return derive_seed(self.seed, "worker", self.worker_index, stream)

    def reseeded(self, attempt: int) -> PolicyExploration:
        """Return the exploration of the worker's replacement, with random streams of its own."""
        return replace(self, seed=derive_seed(self.seed, "attempt", attempt))


class Explorer:
    """Chooses a worker's actions from action values by ε and softmax; owned by its policy."""

    def __init__(self, exploration: PolicyExploration, num_actions: int) -> None:
        self._schedule, self._softmax_temp = exploration.epsilon, exploration.softmax_temp
        self._softmax_rng = np.random.default_rng(exploration.seed_of("exploration"))
        epsilon_rng = np.random.default_rng(exploration.seed_of("epsilon"))
        self._epsilon_greedy = EpsilonGreedy(num_actions, epsilon_rng)

    def epsilons(self, num_steps_sampled: int, num_rows: int) -> Array:
        """Return ε per row ``[M]`` after all workers together have sampled so many env steps.

        An env of several agents has a row for each, all with its ε.
        """
        epsilons = self._schedule.epsilons(num_steps_sampled)
        return epsilons if len(epsilons) == num_rows else epsilons.repeat(num_rows // len(epsilons))

    def choose(self, values: Array, epsilons: Array, allowed: Array | None = None) -> Array:
        """Return actions ``[M]`` for action values ``[M, A]`` and ``epsilons [M]``, of those ``allowed [M, A]``.

        Other actions have the value MASKED. None: all are allowed, in every call.
        """
        temperature = self._softmax_temp
        actions = values.argmax(axis=1) if temperature is None else draw_softmax(values, temperature, self._softmax_rng)
        return self._epsilon_greedy(actions, epsilons, allowed)

    def state(self) -> dict[str, Any]:
        """Return the random streams."""
        return {"epsilon": self._epsilon_greedy.state(), "softmax_rng": self._softmax_rng.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._epsilon_greedy.load(state["epsilon"])
        self._softmax_rng.bit_generator.state = state["softmax_rng"]


class EpsilonGreedyPolicy(WrappedPolicy):
    """A policy that takes a random action with probability ε, for evaluations that explore."""

    def __init__(
        self, policy: ActingPolicy, epsilons: Array, num_actions: int, seed: int, masking: Masking | None = None
    ) -> None:
        """Explore in M envs, for ``epsilons [M]``."""
        super().__init__(policy)
        self._policy, self._masking = policy, masking
        self._epsilons = epsilons
        self._epsilon_greedy = EpsilonGreedy(num_actions, np.random.default_rng(seed))

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[M]``."""
        allowed = None if self._masking is None else self._masking.allowed(obs)
        return self._epsilon_greedy(self._policy.compute_actions(obs), self._epsilons, allowed)


def epsilon_ladder(num_places: int) -> tuple[float, ...]:
    """Return ε_i = 0.4^(1 + 7 i / (N - 1)) for i = 0 .. N - 1 (Horgan et al. 2018, section 4.1); 0.4 if N = 1."""
    if num_places == 1:
        return (0.4,)
    return tuple(0.4 ** (1 + 7 * i / (num_places - 1)) for i in range(num_places))


def draw_softmax(values: Array, temperature: float, rng: np.random.Generator) -> Array:
    """Return actions ``[B]`` drawn with the probabilities softmax(``values [B, A]`` / ``temperature``).

    Adding Gumbel noise and taking the largest draws from a softmax (Gumbel 1954), without a sum that could overflow.
    """
    with np.errstate(over="ignore"):  # near temperature 0, all but the best are at -inf and never drawn
        logits = (values - values.max(axis=1, keepdims=True)).astype(np.float64) / temperature
    actions: Array = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return actions


class EpsilonGreedy:
    """Replaces actions by random ones. Drawing for many steps ahead takes a tenth of the time of drawing for one."""

    def __init__(self, num_actions: int, rng: np.random.Generator) -> None:
        """Only this object draws from ``rng``."""
        self._num_actions = num_actions
        self._rng = rng
        self._ahead: list[tuple[Array, Array]] = []  # for the coming steps, the next one last

    def __call__(self, actions: Array, epsilons: Array, allowed: Array | None = None) -> Array:
        """Return ``actions [M]``, each replaced with probability ``epsilons [M]`` by a uniformly random one.

        Only those ``allowed [M, A]`` are drawn; None: all, in every call.
        """
        if not self._ahead:
            self._draw(len(actions), draws_shares=allowed is not None)
        chances, drawn = self._ahead.pop()
        return np.where(chances < epsilons, drawn if allowed is None else _at_share(allowed, drawn), actions)

    def state(self) -> dict[str, Any]:
        """Return what was drawn ahead, and the generator of the next draws."""
        chances, actions = ([drawn[part] for drawn in self._ahead] for part in range(2))
        return {"rng": self._rng.bit_generator.state, "chances": np.array(chances), "actions": np.array(actions)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._rng.bit_generator.state = state["rng"]
        self._ahead = list(zip(state["chances"], state["actions"], strict=True))

    def _draw(self, num_rows: int, draws_shares: bool) -> None:
        """Draw actions, or with masks the share of the allowed actions that come before each."""
        shape, rng = (STEPS_DRAWN_AHEAD, num_rows), self._rng
        chances = rng.random(shape)
        drawn = rng.random(shape) if draws_shares else rng.integers(self._num_actions, size=shape)
        self._ahead = list(zip(chances[::-1], drawn[::-1], strict=True))


def _at_share(allowed: Array, shares: Array) -> Array:
    """Return the allowed action ``[M]`` at each of ``shares [M]``, 0 to 1, of the ``allowed [M, A]``."""
    number = np.cumsum(allowed, axis=1)
    actions: Array = (number > (shares * number[:, -1]).astype(np.intp)[:, None]).argmax(axis=1)
    return actions
