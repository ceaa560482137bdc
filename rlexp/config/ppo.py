"""PPO's keys and defaults (Schulman et al. 2017), those of RLlib 0.5.3: its files can be checked and converted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlexp.config.common import CommonConfig
from rlexp.config.fields import Conflict, Count, CountOrZero, Fraction, Positive, PositiveOrZero
from rlexp.config.model import ActorCriticModelConfig
from rlexp.config.structured_fields import Schedule


class PPOConfig(CommonConfig):
    """What is under ``config:`` for ``run: PPO``."""

    num_workers: CountOrZero = 2
    sample_batch_size: Count = 200
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "complete_episodes"
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "MeanStdFilter"
    lr: Positive = 5e-5
    train_batch_size: Count = 4000
    timesteps_per_iteration: CountOrZero = 0
    min_iter_time_s: PositiveOrZero = 0.0
    model: ActorCriticModelConfig = ActorCriticModelConfig()

    use_gae: bool = True
    """Estimate advantages by GAE (Schulman et al. 2016); else by the returns."""

    use_critic: bool = True
    """Subtract a learned value from the returns; false only where ``use_gae`` is false."""

    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """GAE's parameter: towards 0 advantages trust the value function, at 1 the returns."""

    kl_coeff: PositiveOrZero = 0.2
    """First coefficient of the penalty on the divergence from the policy before the update; 0 for none."""

    kl_target: Positive = 0.01
    """Divergence that ``kl_coeff`` is steered to."""

    sgd_minibatch_size: Count = 128
    """Transitions in one step of SGD."""

    num_sgd_iter: Count = 30
    """Times that SGD goes over a train batch."""

    clip_param: Positive = 0.3
    """How far the probability ratio may move from 1 before its gradient is cut."""

    vf_clip_param: Positive = 10.0
    """How far the value function may move in one update; mind the scale of the rewards."""

    vf_loss_coeff: PositiveOrZero = 1.0
    """Weight of the value function's loss."""

    entropy_coeff: PositiveOrZero = 0.0
    """Weight of the policy's entropy, which is rewarded."""

    entropy_coeff_schedule: Schedule = None
    """Weights of the entropy over sampled steps: a list of [timestep, weight]. Null: ``entropy_coeff`` all the time."""

    grad_norm_clipping: Positive | None = None
    """Largest norm of the gradient of all variables together. Null: never clipped."""

    clip_actions: bool = True
    """Clip continuous actions to the env's bounds."""

    normalize_actions: bool = False
    """Let the policy act between -1 and 1 and stretch its actions to the env's bounds."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then those of PPO's batches and of its critic."""
        yield from super().conflicts()
        if self.sgd_minibatch_size > self.train_batch_size:
            message = f"{self.said('sgd_minibatch_size')}, more than train_batch_size: {self.train_batch_size}"
            yield Conflict(("sgd_minibatch_size", "train_batch_size"), message, "lower the one or raise the other")
        if self.use_gae and not self.use_critic:
            yield Conflict(("use_critic", "use_gae"), "use_critic is false, but use_gae needs a critic")
