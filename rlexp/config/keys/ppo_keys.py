"""PPO's keys and defaults (Schulman et al. 2017): those of RLlib 0.6.6 unless a docstring says otherwise."""

from __future__ import annotations

from pydantic import Field

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.fields import (
    Count,
    CountOrZero,
    Fraction,
    FragmentLength,
    Positive,
    PositiveOrZero,
    Schedule,
    defaults_of,
)
from rlexp.config.keys.model import ActorCriticModelConfig


class PPOKeys(CommonConfig):
    """The keys of PPO."""

    num_workers: CountOrZero = 2
    sample_batch_size: FragmentLength = 200
    lr: Positive = 5e-5
    grad_norm_clipping: Positive | None = None
    timesteps_per_iteration: CountOrZero | None = 0
    min_iter_time_s: PositiveOrZero | None = 0.0
    model: ActorCriticModelConfig = defaults_of(ActorCriticModelConfig)

    sample_async: bool = False
    """Sample the next train batch while the learner trains on the last one. The weights that sample it are then one
    train batch old. Has no effect with ``num_workers: 0``."""

    train_batch_size: Count = 4000
    """Number of env steps that workers sample, with the same weights, for each update of the policy. They send whole
    fragments, so a batch may have more."""

    sgd_minibatch_size: Count = 128
    """Number of transitions in one step of SGD, those of all learners together. An epoch divides a train batch into
    parts of about this size."""

    num_sgd_iter: Count = 30
    """Number of epochs: how often SGD uses each transition of a train batch. Each epoch has them in a new order."""

    num_learners: Count = 1
    """Number of learners that share each minibatch, each in a process of its own where there are several.

    The sizes of batches are those of all learners together; RLlib's ``minibatch_size`` and
    ``train_batch_size_per_learner`` are multiplied by it. Several learners can only help with GPUs, or for a large
    network on many CPUs.
    """

    num_cpus_per_learner: PositiveOrZero = 1.0
    """CPUs reserved for each learner, where there are several. A single one uses those of the driver."""

    use_gae: bool = True
    """Estimate advantages by GAE (Schulman et al. 2016). False: by the returns, minus the value where there is a
    critic; this needs ``batch_mode: complete_episodes``."""

    use_critic: bool = True
    """Learn a value function. False: advantages are the returns, and there is no value loss; this needs
    ``use_gae: false``."""

    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """GAE's parameter. Near 0 advantages rely on the value function, at 1 on the returns."""

    clip_param: Positive = 0.3
    """Distance of the probability ratio from 1 at which it is clipped."""

    kl_coeff: PositiveOrZero = 0.2
    """Coefficient, at the start, of the penalty on the KL divergence from the policy that sampled the batch.

    After each train batch it is multiplied by 1.5 if the divergence is above 2 ``kl_target``, and by 0.5 if it is below
    half of ``kl_target``. 0: no penalty.
    """

    kl_target: Positive = 0.01
    """KL divergence between the policies before and after a train batch towards which ``kl_coeff`` is adapted."""

    vf_clip_param: Positive = 10.0
    """How far the value of an observation can move from the value that the workers computed, in one train batch.

    The value loss is the larger one of the squared errors with and without this limit. It depends on the scale of the
    returns: returns that are far larger than it are learned slowly.
    """

    vf_loss_coeff: PositiveOrZero = 1.0
    """Weight of the value loss, the mean squared error (without a factor of 0.5)."""

    entropy_coeff: PositiveOrZero = 0.0
    """Weight of the entropy bonus."""

    entropy_coeff_schedule: Schedule = None
    """Weights of the entropy bonus over sampled steps: a list of [timestep, weight]. Linear between them, constant
    after the last. Null: constant ``entropy_coeff``."""

    clip_actions: bool = True
    """Clip continuous actions to the bounds of the env. The learner uses them as they were drawn."""

    normalize_actions: bool = False
    """Scale continuous actions from [-1, 1] to the bounds of the env, and clip them to these. The learner uses them as
    they were drawn. The env must have bounds."""
