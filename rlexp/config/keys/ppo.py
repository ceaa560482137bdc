"""The keys of PPO (Schulman et al. 2017) and DDPPO (Wijmans et al. 2020), and their properties for other rooms.

Defaults are RLlib 0.6.6's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlexp.config.keys.actor_critic_keys import ActorCriticKeys
from rlexp.config.keys.common import FactLine, keys_without_effect
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    Conflict,
    Count,
    CountOrZero,
    FragmentLength,
    Positive,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.model import ActorCriticModelConfig
from rlexp.config.keys.sync_samples_keys import EpochKeys


class PPOKeys(EpochKeys, ActorCriticKeys):
    """The keys of PPO."""

    num_workers: CountOrZero = 2
    sample_batch_size: FragmentLength = 200
    lr: Positive = 5e-5
    grad_norm_clipping: Positive | None = None
    train_batch_size: Count = 4000
    sgd_minibatch_size: Count = 128
    num_sgd_iter: Count = 30
    model: ActorCriticModelConfig = defaults_of(ActorCriticModelConfig)

    clip_param: Positive = 0.3
    """Distance of the probability ratio from 1 at which it is clipped."""

    kl_coeff: PositiveOrZero = 0.2
    """Initial coefficient of the penalty on the KL divergence from the policy that sampled the batch.

    After each train batch it is multiplied by 1.5 if the divergence is above 2 ``kl_target``, and by 0.5 if it is below
    half of ``kl_target``. 0: no penalty.
    """

    kl_target: Positive = 0.01
    """KL divergence between the policies before and after a train batch towards which ``kl_coeff`` is adapted."""

    vf_clip_param: Positive = 10.0
    """How far the value of an observation can move from the value that the workers computed, in one train batch.

    The value loss is the larger one of the squared errors with and without this limit. It depends on the scale of the
    returns: far larger returns are learned slowly.
    """

    vf_loss_coeff: PositiveOrZero = 1.0
    """Weight of the value loss, the mean squared error (without a factor of 0.5)."""


class PPOConfig(PPOKeys):
    """What is under ``config:`` for ``run: PPO``."""

    AGENT_COLUMNS = (
        *("info/weight_age", "info/learner/total_loss", "info/learner/policy_loss", "info/learner/vf_loss"),
        *("info/learner/vf_explained_var", "info/learner/kl", "info/learner/cur_kl_coeff", "info/learner/entropy"),
        *("info/learner/cur_entropy_coeff", "info/learner/clip_fraction", "info/learner/grad_norm"),
        *("info/learner/lr", "info/learner/cur_lr", "info/learner/mean_abs_value_target", "info/num_fragments_lost"),
        "info/adam_step_share",
        *("info/learner_time_share/workers", "info/learner_time_share/learner"),
    )
    DISPLAYED = (
        *EpochKeys.DISPLAYED,
        FactLine(
            "learning",
            (
                "kl {info/learner/kl:short} (coeff {info/learner/cur_kl_coeff:short})",
                "entropy {info/learner/entropy:short}",
                "clipped {info/learner/clip_fraction:percent}",
                "explained {info/learner/vf_explained_var:short}",
            ),
        ),
    )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        yield from keys_without_effect(
            (self.kl_coeff == 0, ("kl_target",), "kl_coeff is 0"),
            (not self.use_critic, ("vf_clip_param",), "use_critic is false"),
        )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.whole_minibatch < self.num_learners:
            message = f"{self.stated('sgd_minibatch_size')}, less than num_learners, which is {self.num_learners}"
            hint = "raise sgd_minibatch_size or lower num_learners; each learner needs a transition at least"
            yield Conflict(("sgd_minibatch_size", "num_learners"), message, hint)


class DDPPOConfig(PPOConfig):
    """What is under ``config:`` for ``run: DDPPO``: PPO with the defaults of RLlib's DDPPO, 1.8 to 2.9."""

    num_envs_per_worker: Count = 5
    sample_batch_size: FragmentLength = 100
    num_sgd_iter: Count = 10
    kl_coeff: PositiveOrZero = 0.0

    train_batch_size: Count = 500
    """Number of env steps that each worker samples, with the same weights, for each update of the policy.

    They send whole fragments, so a batch may have more."""

    sgd_minibatch_size: Count = 50
    """Number of transitions of each worker in one step of SGD: with 4 workers, a step has four times as many.

    In DD-PPO each worker computes the gradient of its own minibatch, and the gradients are averaged. Here the learners
    take the minibatches of all workers together, which is the same gradient on average."""

    @property
    def whole_train_batch(self) -> int:
        return self.train_batch_size * max(self.num_workers, 1)

    @property
    def whole_minibatch(self) -> int:
        return self.sgd_minibatch_size * max(self.num_workers, 1)


class PPOExperiment(Experiment):
    """An experiment with PPO."""

    AGENT = "rlexp.agents.ppo.agent:PPOAgent"
    POLICIES = "rlexp.agents.actor_critic.policy:ActorCriticPolicies"
    run: Literal["PPO"]
    config: PPOConfig = defaults_of(PPOConfig)


class DDPPOExperiment(PPOExperiment):
    """An experiment with DDPPO, which PPO's agent trains."""

    run: Literal["DDPPO"]  # type: ignore[assignment]  # a name of its own
    config: DDPPOConfig = defaults_of(DDPPOConfig)
