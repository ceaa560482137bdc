"""The keys of A2C, A3C (Mnih et al. 2016) and PG (Williams 1992), which make one gradient step for each train batch.

Defaults are RLlib 0.6.6's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from rlexp.config.keys.actor_critic_keys import ActorCriticKeys
from rlexp.config.keys.async_samples_keys import AsyncSamplesKeys
from rlexp.config.keys.common import FactLine
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    Count,
    CountOrZero,
    FragmentLength,
    Positive,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.model import ActorCriticModelConfig
from rlexp.config.keys.sync_samples_keys import SyncSamplesKeys


class SharedLayersModelConfig(ActorCriticModelConfig):
    """A network whose value function shares the layers of the policy."""

    vf_share_layers: bool = True


LEARNER_COLUMNS: Final = (
    *("info/learner/total_loss", "info/learner/policy_loss", "info/learner/vf_loss"),
    *("info/learner/vf_explained_var", "info/learner/entropy", "info/learner/cur_entropy_coeff"),
    *("info/learner/grad_norm", "info/learner/lr", "info/learner/cur_lr"),
)
LEARNER_LINE: Final = FactLine(
    "learning", ("entropy {info/learner/entropy:short}", "gradient {info/learner/grad_norm:short}")
)


class PolicyGradientKeys(ActorCriticKeys):
    """The keys of an agent that follows the gradient of the policy, a step for each train batch."""

    SUMS_LOSSES: ClassVar[bool] = True
    """Whether the loss is a sum over the rows of a train batch, or their mean."""

    grad_norm_clipping: Positive | None = 40.0
    model: ActorCriticModelConfig = defaults_of(SharedLayersModelConfig)

    vf_loss_coeff: PositiveOrZero = 0.5
    """Weight of the value loss: half the squared error, summed over a train batch."""

    entropy_coeff: PositiveOrZero = 0.01
    """Weight of the entropy bonus, summed over a train batch."""


class SyncPolicyGradientKeys(SyncSamplesKeys, PolicyGradientKeys):
    """The keys of a policy gradient on train batches of the newest weights."""

    AGENT_COLUMNS = (
        *("info/weight_age", *LEARNER_COLUMNS, "info/num_fragments_lost", "info/adam_step_share"),
        *("info/learner_time_share/workers", "info/learner_time_share/learner"),
    )
    DISPLAYED = (*SyncSamplesKeys.DISPLAYED, LEARNER_LINE)


class A2CConfig(SyncPolicyGradientKeys):
    """What is under ``config:`` for ``run: A2C``."""

    num_workers: CountOrZero = 2
    sample_batch_size: FragmentLength = 20
    lr: Positive = 1e-4
    train_batch_size: Count = 200
    min_iter_time_s: PositiveOrZero | None = 10.0
    grad_norm_clipping: Positive | None = 40.0
    model: SharedLayersModelConfig = defaults_of(SharedLayersModelConfig)


class A3CConfig(AsyncSamplesKeys, PolicyGradientKeys):
    """What is under ``config:`` for ``run: A3C``."""

    AGENT_COLUMNS = (*AsyncSamplesKeys.SAMPLES_COLUMNS, *LEARNER_COLUMNS)
    DISPLAYED = (*AsyncSamplesKeys.DISPLAYED, LEARNER_LINE)

    num_workers: CountOrZero = 2
    sample_batch_size: FragmentLength = 10
    lr: Positive = 1e-4
    train_batch_size: Count = 1
    min_iter_time_s: PositiveOrZero | None = 5.0
    grad_norm_clipping: Positive | None = 40.0
    model: SharedLayersModelConfig = defaults_of(SharedLayersModelConfig)

    @property
    def board_obstacle(self) -> str | None:
        """That nothing corrects for the age of policies, which V-trace does."""
        return "it does not correct for how old the policies of joined actors are; use IMPALA or APPO, which do"

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        yield "train_batch_size", "A3C makes a step for each fragment"


class PGConfig(SyncPolicyGradientKeys):
    """What is under ``config:`` for ``run: PG``."""

    SUMS_LOSSES = False

    num_workers: CountOrZero = 0
    sample_batch_size: FragmentLength = 200
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "complete_episodes"
    lr: Positive = 4e-4
    grad_norm_clipping: Positive | None = None
    train_batch_size: Count = 200
    vf_loss_coeff: PositiveOrZero = 0.5
    entropy_coeff: PositiveOrZero = 0.0
    use_gae: bool = False
    use_critic: bool = False
    model: ActorCriticModelConfig = defaults_of(ActorCriticModelConfig)


class A2CExperiment(Experiment):
    """An experiment with A2C."""

    AGENT = "rlexp.agents.a2c:A2CAgent"
    POLICIES = "rlexp.agents.actor_critic.policy:ActorCriticPolicies"
    run: Literal["A2C"]
    config: A2CConfig = defaults_of(A2CConfig)


class A3CExperiment(Experiment):
    """An experiment with A3C."""

    AGENT = "rlexp.agents.a2c:A3CAgent"
    POLICIES = "rlexp.agents.actor_critic.policy:ActorCriticPolicies"
    run: Literal["A3C"]
    config: A3CConfig = defaults_of(A3CConfig)


class PGExperiment(Experiment):
    """An experiment with PG."""

    AGENT = "rlexp.agents.a2c:PGAgent"
    POLICIES = "rlexp.agents.actor_critic.policy:ActorCriticPolicies"
    run: Literal["PG"]
    config: PGConfig = defaults_of(PGConfig)
