"""The keys of ES (Salimans et al. 2017) and ARS (Mania et al. 2018), which play whole episodes with changed weights.

Defaults are RLlib 0.6.6's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlexp.config.keys.actor_critic_keys import PolicyActionKeys
from rlexp.config.keys.common import Caution, FactLine, keys_without_effect
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    Count,
    CountOrZero,
    Fraction,
    FragmentLength,
    Positive,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.sync_samples_keys import SyncSamplesKeys


class EvolutionKeys(SyncSamplesKeys, PolicyActionKeys):
    """The keys of an agent that learns from the returns of whole episodes with changed weights."""

    ROLLOUT_KEYS = PolicyActionKeys.ROLLOUT_KEYS | {"noise_stdev", "eval_prob", "action_noise_std"}
    AGENT_COLUMNS = (
        *("info/learner/grad_norm", "info/learner/update_ratio", "info/learner/weights_norm"),
        *("info/learner/return_deviation", "info/learner/lr", "info/learner/cur_lr", "info/num_fragments_lost"),
        *("info/learner_time_share/workers", "info/learner_time_share/learner"),
    )
    DISPLAYED = (
        FactLine("speed", ("sampled {info/sample_throughput:count}/s", "{episodes_this_iter:count} episodes")),
        FactLine(
            "learning",
            (
                "returns ± {info/learner/return_deviation:short}",
                "gradient {info/learner/grad_norm:short}",
                "step {info/learner/update_ratio:percent} of the weights",
            ),
        ),
    )

    sample_batch_size: FragmentLength = 200
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "MeanStdFilter"
    grad_norm_clipping: Positive | None = None
    metrics_smoothing_episodes: Count = 10
    lr: Positive = 0.01

    noise_stdev: Positive = 0.02
    """Standard deviation of the noise that is added to the weights for an episode, and taken from them for another."""

    eval_prob: Fraction
    """Number of episodes without noise for each pair of episodes with noise, on average. Only they count for
    ``episode_reward_mean``. After each update, every worker plays at least one."""

    action_noise_std: PositiveOrZero
    """Standard deviation of noise on continuous actions, in episodes with noise on the weights."""

    @property
    def num_directions(self) -> int:
        """Pairs of episodes with noise for each update."""
        raise NotImplementedError

    @property
    def least_env_steps(self) -> int:
        """Least env steps for each update."""
        return 0

    @property
    def directions_per_call(self) -> int:
        """Directions that a worker plays in one call: a divisor of all, so that an update has exactly so many.

        Short calls keep all workers busy to the end. An env that has played its part of a call steps in vain until the
        others are done, so several envs get two directions each.
        """
        most = min(2 * self.num_envs_per_worker if self.num_envs_per_worker > 1 else 1, self.num_directions)
        return next(number for number in range(most, 0, -1) if self.num_directions % number == 0)

    @property
    def most_gpus(self) -> int:
        """None: a step adds up noise, and there is no backward pass."""
        return 0

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from ((key, reason) for key, reason in super().ineffective_keys() if key != "sample_async")
        explore = ("explore", "evaluation_config.explore", "evaluation_config.exploration_final_eps")
        no_steps = "workers play whole episodes, and learn from their returns"
        yield from keys_without_effect(
            (True, ("sample_batch_size", "batch_mode", "gamma"), no_steps),
            (True, ("sample_async",), "every episode of an update is played with its weights"),
            (True, explore, "workers explore by noise on the weights, evaluations do not"),
        )


class ESConfig(EvolutionKeys):
    """What is under ``config:`` for ``run: ES``."""

    num_workers: CountOrZero = 10
    train_batch_size: Count = 10_000
    eval_prob: Fraction = 0.003
    action_noise_std: PositiveOrZero = 0.01

    episodes_per_batch: Count = 1000
    """Episodes with noise for each update, at least, and ``train_batch_size`` env steps. Half of them have the noise of
    the other half with the other sign."""

    l2_coeff: PositiveOrZero = 0.005
    """Factor of the weights that are taken from the gradient, so that weights which do not matter become small."""

    @property
    def num_directions(self) -> int:
        """Half of the episodes."""
        return -(-self.episodes_per_batch // 2)

    @property
    def least_env_steps(self) -> int:
        return self.train_batch_size


class ARSConfig(EvolutionKeys):
    """What is under ``config:`` for ``run: ARS``."""

    num_workers: CountOrZero = 2
    train_batch_size: Count = 200
    eval_prob: Fraction = 0.03
    action_noise_std: PositiveOrZero = 0.0

    num_rollouts: Count = 32
    """Number of noises for each update. An episode is played with each of them, and one with the other sign."""

    rollouts_used: Count | None = None
    """How many of them the update uses: those whose better episode is best. Null: all."""

    offset: float = 0.0
    """Number that is taken from each reward before rewards are added up, such as the reward for staying alive."""

    @property
    def num_directions(self) -> int:
        return self.num_rollouts

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        yield "train_batch_size", "an update has num_rollouts pairs of episodes"
        yield "adam_epsilon", "ARS makes plain steps"

    def cautions(self) -> Iterator[Caution]:
        yield from super().cautions()
        if self.rollouts_used is not None and self.rollouts_used > self.num_rollouts:
            yield Caution("rollouts_used", f"is more than num_rollouts, which is {self.num_rollouts}: all are used")


class ESExperiment(Experiment):
    """An experiment with ES."""

    AGENT = "rlexp.agents.evolution.agent:ESAgent"
    POLICIES = "rlexp.agents.evolution.policy:EvolutionPolicies"
    run: Literal["ES"]
    config: ESConfig = defaults_of(ESConfig)


class ARSExperiment(Experiment):
    """An experiment with ARS."""

    AGENT = "rlexp.agents.evolution.agent:ARSAgent"
    POLICIES = "rlexp.agents.evolution.policy:EvolutionPolicies"
    run: Literal["ARS"]
    config: ARSConfig = defaults_of(ARSConfig)
