"""PPO's keys (Schulman et al. 2017), and their properties for other rooms: processes, actions, conflicts.

Defaults are RLlib 0.6.6's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from rlexp.config.keys.common import ActionScaling, CommonConfig, FactLine, LearnerProcesses, PlayableActions
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    Conflict,
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
from rlexp.config.keys.sync_samples_keys import SyncSamplesKeys


class PPOKeys(SyncSamplesKeys):
    """The keys of PPO."""

    num_workers: CountOrZero = 2
    sample_batch_size: FragmentLength = 200
    lr: Positive = 5e-5
    grad_norm_clipping: Positive | None = None
    train_batch_size: Count = 4000
    sgd_minibatch_size: Count = 128
    num_sgd_iter: Count = 30
    model: ActorCriticModelConfig = defaults_of(ActorCriticModelConfig)

    num_learners: Count = 1
    """Number of learners that share each minibatch; several have a process each.

    Batch sizes count all learners together; RLlib's ``minibatch_size`` and ``train_batch_size_per_learner`` are
    multiplied by it. Several learners can only help with GPUs, or for a large network on many CPUs.
    """

    num_cpus_per_learner: PositiveOrZero = 1.0
    """CPUs reserved for each of several learners. A single one uses the driver's."""

    use_gae: bool = True
    """Estimate advantages by GAE (Schulman et al. 2016). False: by the returns, minus the value if there is a critic;
    this needs ``batch_mode: complete_episodes``."""

    use_critic: bool = True
    """Learn a value function. False: advantages are the returns, and there is no value loss; this needs
    ``use_gae: false``."""

    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """GAE's parameter. Near 0 advantages rely on the value function, at 1 on the returns."""

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

    entropy_coeff: PositiveOrZero = 0.0
    """Weight of the entropy bonus."""

    entropy_coeff_schedule: Schedule = None
    """Weights of the entropy bonus over sampled steps: a list of [timestep, weight]. Linear between them, constant
    after the last. Null: constant ``entropy_coeff``."""

    clip_actions: bool = True
    """Clip continuous actions to the bounds of the env. The learner uses the actions before clipping."""

    normalize_actions: bool = False
    """Scale continuous actions from [-1, 1] to the bounds of the env, and clip them to these. The learner uses the
    actions before this. The env must have bounds."""


_CRITIC = ("vf_loss_coeff", "vf_clip_param", "model.vf_share_layers")


class PPOConfig(PPOKeys):
    """What is under ``config:`` for ``run: PPO``."""

    LEARNERS_KEY: ClassVar[str | None] = "num_learners"
    ROLLOUT_KEYS: ClassVar[frozenset[str]] = CommonConfig.ROLLOUT_KEYS | {
        *("lambda_", "use_gae", "use_critic", "clip_actions", "normalize_actions")
    }
    AGENT_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("info/weight_age", "info/learner/total_loss", "info/learner/policy_loss", "info/learner/vf_loss"),
        *("info/learner/vf_explained_var", "info/learner/kl", "info/learner/cur_kl_coeff", "info/learner/entropy"),
        *("info/learner/cur_entropy_coeff", "info/learner/clip_fraction", "info/learner/grad_norm"),
        *("info/learner/lr", "info/learner/cur_lr", "info/learner/mean_abs_value_target", "info/num_fragments_lost"),
        "info/adam_step_share",
        *("info/learner_time_share/workers", "info/learner_time_share/learner"),
    )
    DISPLAYED: ClassVar[tuple[FactLine, ...]] = (
        *SyncSamplesKeys.DISPLAYED,
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
    KEPT_BY_PBT: ClassVar[tuple[str, ...]] = (
        *CommonConfig.KEPT_BY_PBT,
        *("use_critic", "num_learners", "num_cpus_per_learner", "clip_actions", "normalize_actions"),
    )

    @property
    def learner_processes(self) -> LearnerProcesses | None:
        """A process for each of several learners, with an equal share of the GPUs."""
        if self.num_learners == 1:
            return None
        return LearnerProcesses(self.num_learners, self.num_cpus_per_learner, self.num_gpus / self.num_learners)

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
        """``normalize_actions`` also clips, so it has precedence."""
        if self.normalize_actions:
            return "normalized"
        return "clipped" if self.clip_actions else None

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        """Yield the parent's keys, then keys of schedules, advantages, actions and learners."""
        yield from super().ineffective_keys()
        for is_ineffective, keys, reason in (
            (self.entropy_coeff_schedule is not None, ("entropy_coeff",), "entropy_coeff_schedule is given"),
            (self.kl_coeff == 0, ("kl_target",), "kl_coeff is 0"),
            (not self.use_gae, ("lambda",), "use_gae is false"),
            (not self.use_critic, _CRITIC, "use_critic is false"),
            (self.normalize_actions, ("clip_actions",), "normalize_actions clips as well"),
            (self.num_learners == 1, ("num_cpus_per_learner",), "there is one learner, in the process of the driver"),
            (True, ("evaluation_config.exploration_final_eps",), "PPO explores by sampling from its policy"),
        ):
            if is_ineffective:
                yield from ((key, reason) for key in keys)

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then conflicts of advantages and of learners."""
        yield from super().conflicts()
        yield from self._impossible_advantages()
        if self.sgd_minibatch_size < self.num_learners:
            message = f"{self.stated('sgd_minibatch_size')}, less than num_learners, which is {self.num_learners}"
            hint = "raise sgd_minibatch_size or lower num_learners; each learner needs a transition at least"
            yield Conflict(("sgd_minibatch_size", "num_learners"), message, hint)
        if 0 < self.num_gpus < self.num_learners != 1:
            message = f"num_gpus is {self.num_gpus:g}, less than num_learners, which is {self.num_learners}"
            hint = f"write num_gpus: {self.num_learners}, or 0, or fewer learners; they cannot share a GPU"
            yield Conflict(("num_gpus", "num_learners"), message, hint)

    def _impossible_advantages(self) -> Iterator[Conflict]:
        """Yield that GAE has no critic, and that returns would end with a fragment."""
        if self.use_gae and not self.use_critic:
            message = "use_critic is false, but use_gae needs a critic"
            yield Conflict(("use_critic", "use_gae"), message, "write use_gae: false, or leave use_critic out")
        if not self.use_gae and self.batch_mode == "truncate_episodes":
            message = f"use_gae is false, but {self.stated('batch_mode')}; returns need whole episodes"
            yield Conflict(
                ("use_gae", "batch_mode"), message, "write batch_mode: complete_episodes, or leave use_gae out"
            )


class PPOExperiment(Experiment):
    """An experiment with PPO."""

    AGENT: ClassVar[str] = "rlexp.agents.ppo.agent:PPOAgent"
    POLICIES: ClassVar[str] = "rlexp.agents.ppo.policy:PPOPolicies"
    run: Literal["PPO"]
    config: PPOConfig = defaults_of(PPOConfig)
