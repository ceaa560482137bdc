"""PPO's keys and defaults (Schulman et al. 2017), those of RLlib 0.5.3. Its files can be checked and converted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from rlexp.config.keys.capabilities import ActionScaling, PlayableActions
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import Conflict, Count, CountOrZero, Fraction, Positive, PositiveOrZero, Schedule
from rlexp.config.keys.model import ActorCriticModelConfig

_WITHOUT_CRITIC = "write use_gae: false, or leave use_critic out"


class PPOConfig(CommonConfig):
    """What is under ``config:`` for ``run: PPO``."""

    num_workers: CountOrZero = 2
    sample_batch_size: Count = 200
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "complete_episodes"
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "MeanStdFilter"
    lr: Positive = 5e-5
    train_batch_size: Count = 4000
    timesteps_per_iteration: CountOrZero | None = 0
    min_iter_time_s: PositiveOrZero | None = 0.0
    model: ActorCriticModelConfig = ActorCriticModelConfig()

    use_gae: bool = True
    """Estimate advantages by GAE (Schulman et al. 2016). False: by the returns."""

    use_critic: bool = True
    """Subtract a learned value from the returns. Can be false only if ``use_gae`` is false."""

    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """GAE's parameter. Near 0 advantages rely on the value function, at 1 on the returns."""

    kl_coeff: PositiveOrZero = 0.2
    """Initial coefficient of the penalty on the KL divergence from the policy before the update. 0: no penalty."""

    kl_target: Positive = 0.01
    """KL divergence towards which ``kl_coeff`` is adapted."""

    sgd_minibatch_size: Count = 128
    """Number of transitions in one step of SGD."""

    num_sgd_iter: Count = 30
    """Number of passes of SGD over a train batch."""

    clip_param: Positive = 0.3
    """Distance of the probability ratio from 1 at which it is clipped."""

    vf_clip_param: Positive = 10.0
    """Distance that the value function can move in one update. It depends on the scale of the rewards."""

    vf_loss_coeff: PositiveOrZero = 1.0
    """Weight of the loss of the value function."""

    entropy_coeff: PositiveOrZero = 0.0
    """Weight of the entropy bonus."""

    entropy_coeff_schedule: Schedule = None
    """Weights of the entropy bonus over sampled steps: a list of [timestep, weight]. Null: ``entropy_coeff``."""

    grad_norm_clipping: Positive | None = None
    """Maximum norm of the gradient of all parameters together. Null: no clipping."""

    clip_actions: bool = True
    """Clip continuous actions to the bounds of the env."""

    normalize_actions: bool = False
    """Let the policy act between -1 and 1, and scale its actions to the bounds of the env."""

    @property
    def playable_actions(self) -> PlayableActions:
        """PPO draws each number of an action from a distribution of its own."""
        return PlayableActions(
            spaces=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
            needs="PPO needs a Discrete, MultiDiscrete, MultiBinary or Box one",
            hint="wrap the env so that its action is one number or one array of numbers, such as MultiDiscrete",
        )

    @property
    def continuous_actions(self) -> ActionScaling | None:
        """``normalize_actions`` clips as well, so it has precedence."""
        if self.normalize_actions:
            return "normalized"
        return "clipped" if self.clip_actions else None

    adam_epsilon: Positive = 1e-8
    """Eps."""

    @property
    def fragment_length(self) -> int:
        return self.sample_batch_size

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then those of PPO's batches and of its critic."""
        yield from super().conflicts()
        if self.sgd_minibatch_size > self.train_batch_size:
            message = (
                f"{self.stated('sgd_minibatch_size')}, more than train_batch_size, which is {self.train_batch_size}"
            )
            hint = "lower sgd_minibatch_size or raise train_batch_size"
            yield Conflict(("sgd_minibatch_size", "train_batch_size"), message, hint)
        if self.use_gae and not self.use_critic:
            yield Conflict(
                ("use_critic", "use_gae"), "use_critic is false, but use_gae needs a critic", _WITHOUT_CRITIC
            )


class PPOExperiment(Experiment):
    """An experiment with PPO."""

    AGENT: ClassVar[str | None] = "rlexp.agents.ppo.agent:PPOAgent"
    run: Literal["PPO"]
    config: PPOConfig = PPOConfig()
