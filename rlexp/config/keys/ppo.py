"""PPO: what other rooms ask of its keys: its processes, actions, conflicts, and keys that have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from rlexp.config.keys.capabilities import ActionScaling, FactLine, LearnerProcesses, PlayableActions
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import Conflict, defaults_of
from rlexp.config.keys.ppo_keys import PPOKeys

_CRITIC = ("vf_loss_coeff", "vf_clip_param", "model.vf_share_layers")


class PPOConfig(PPOKeys):
    """What is under ``config:`` for ``run: PPO``."""

    LEARNERS_KEY: ClassVar[str | None] = "num_learners"
    WORKERS_USE_GPUS: ClassVar[bool] = False
    ROLLOUT_KEYS: ClassVar[frozenset[str]] = CommonConfig.ROLLOUT_KEYS | {
        *("lambda_", "use_gae", "use_critic", "clip_actions", "normalize_actions")
    }
    AGENT_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("info/weight_age", "info/learner/total_loss", "info/learner/policy_loss", "info/learner/vf_loss"),
        *("info/learner/vf_explained_var", "info/learner/kl", "info/learner/cur_kl_coeff", "info/learner/entropy"),
        *("info/learner/cur_entropy_coeff", "info/learner/clip_fraction", "info/learner/grad_norm"),
        *("info/learner/lr", "info/learner/cur_lr", "info/learner/mean_abs_value_target", "info/num_fragments_lost"),
        *("info/learner_time_share/workers", "info/learner_time_share/learner"),
    )
    DISPLAYED: ClassVar[tuple[FactLine, ...]] = (
        *CommonConfig.DISPLAYED,
        FactLine(
            "time",
            (
                "sampling {info/learner_time_share/workers:percent}",
                "learning {info/learner_time_share/learner:percent}",
                "weight age {info/weight_age:count}",
            ),
        ),
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
    def workers_sample_ahead(self) -> bool:
        """No: workers wait for new weights after each train batch; ``sample_async`` is about whole batches."""
        return False

    @property
    def learner_processes(self) -> LearnerProcesses | None:
        """A process for each learner, with an equal share of the GPUs, where there are several."""
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
        """``normalize_actions`` clips as well, so it has precedence."""
        if self.normalize_actions:
            return "normalized"
        return "clipped" if self.clip_actions else None

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        """Yield the parent's, then those of schedules, advantages, actions and learners."""
        yield from super().ineffective_keys()
        for is_ineffective, keys, reason in (
            (self.entropy_coeff_schedule is not None, ("entropy_coeff",), "entropy_coeff_schedule is given"),
            (self.kl_coeff == 0, ("kl_target",), "kl_coeff is 0"),
            (not self.use_gae, ("lambda",), "use_gae is false"),
            (not self.use_critic, _CRITIC, "use_critic is false"),
            (self.normalize_actions, ("clip_actions",), "normalize_actions clips as well"),
            (self.num_learners == 1, ("num_cpus_per_learner",), "there is one learner, in the process of the driver"),
            (True, ("evaluation_config.exploration_final_eps",), "PPO explores by sampling from its policy"),
            (self.num_workers == 0, ("sample_async",), "num_workers is 0, so nothing samples beside the learner"),
        ):
            if is_ineffective:
                yield from ((key, reason) for key in keys)

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then those of advantages, and of batches and learners."""
        yield from super().conflicts()
        yield from self._impossible_advantages()
        if self.sgd_minibatch_size > self.train_batch_size:
            message = (
                f"{self.stated('sgd_minibatch_size')}, more than train_batch_size, which is {self.train_batch_size}"
            )
            hint = "lower sgd_minibatch_size or raise train_batch_size"
            yield Conflict(("sgd_minibatch_size", "train_batch_size"), message, hint)
        if self.sgd_minibatch_size < self.num_learners:
            message = f"{self.stated('sgd_minibatch_size')}, less than num_learners, which is {self.num_learners}"
            hint = "raise sgd_minibatch_size or lower num_learners; each learner needs a transition at least"
            yield Conflict(("sgd_minibatch_size", "num_learners"), message, hint)
        if 0 < self.num_gpus < self.num_learners != 1:
            message = f"num_gpus is {self.num_gpus:g}, less than num_learners, which is {self.num_learners}"
            hint = f"write num_gpus: {self.num_learners}, or 0, or fewer learners; they cannot share a GPU"
            yield Conflict(("num_gpus", "num_learners"), message, hint)

    def _impossible_advantages(self) -> Iterator[Conflict]:
        """Yield that GAE has no critic, and that returns would end where a fragment ends."""
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
