"""The keys of IMPALA (Espeholt et al. 2018) and APPO (after Luo et al. 2020), and their properties for other rooms.

Defaults are RLlib 0.6.6's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from rlexp.config.keys.a2c import LEARNER_COLUMNS, PolicyGradientKeys, SharedLayersModelConfig
from rlexp.config.keys.actor_critic_keys import ActorCriticKeys
from rlexp.config.keys.async_samples_keys import AsyncSamplesKeys
from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common import BOARD_LINE, FactLine, JoinableKeys, keys_without_effect
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Count,
    CountOrZero,
    Fraction,
    FragmentLength,
    Positive,
    PositiveFraction,
    PositiveOrZero,
    defaults_of,
)


class PolicyBoardConfig(BoardConfig):
    """What is under ``board:`` for agents that learn a policy by what it has played."""

    weights_period_s: Positive = 0.05


class VTraceKeys(AsyncSamplesKeys, PolicyGradientKeys, JoinableKeys):
    """The keys that IMPALA and APPO share."""

    AGENT_COLUMNS = (
        *AsyncSamplesKeys.SAMPLES_COLUMNS,
        *(*LEARNER_COLUMNS, "info/learner/kl"),
        *("info/learner_time_share/wait", "info/learner_time_share/learning"),
    )
    DISPLAYED = (
        *AsyncSamplesKeys.DISPLAYED,
        FactLine(
            "learning",
            (
                "kl {info/learner/kl:short}",
                "entropy {info/learner/entropy:short}",
                "explained {info/learner/vf_explained_var:short}",
                "gradient {info/learner/grad_norm:short}",
            ),
        ),
        BOARD_LINE,
    )
    KEPT_BY_PBT = (
        *ActorCriticKeys.KEPT_BY_PBT,
        *("vtrace", "opt_type", "minibatch_buffer_size", "replay_proportion", "replay_buffer_num_slots", "board"),
    )
    ROLLOUT_KEYS = ActorCriticKeys.ROLLOUT_KEYS | {"vtrace"}

    num_workers: CountOrZero = 2
    sample_batch_size: FragmentLength = 50
    lr: Positive = 5e-4
    train_batch_size: Count = 500
    min_iter_time_s: PositiveOrZero | None = 10.0
    grad_norm_clipping: Positive | None = 40.0
    model: SharedLayersModelConfig = defaults_of(SharedLayersModelConfig)
    board: Annotated[PolicyBoardConfig, RLEXP_ONLY] = defaults_of(PolicyBoardConfig)

    vtrace: bool
    """Correct for the age of the policy that acted by V-trace (Espeholt et al. 2018). False: train on the advantages
    that the workers computed, without a correction."""

    vtrace_clip_rho_threshold: Positive = 1.0
    """Most that the ratio of probabilities of the learned policy to the one that acted weighs in value targets."""

    vtrace_clip_pg_rho_threshold: Positive = 1.0
    """The same in the gradient of the policy."""

    opt_type: Literal["adam", "rmsprop"] = "adam"
    """What moves the weights along their gradient: Adam, or RMSProp as in the paper of IMPALA."""

    decay: Fraction = 0.99
    """Decay of RMSProp's mean of the squared gradient, per update."""

    momentum: Fraction = 0.0
    """RMSProp's momentum."""

    epsilon: Positive = 0.1
    """RMSProp's epsilon, added to the root of that mean. Adam's is ``adam_epsilon``."""

    @property
    def workers_send_segments(self) -> bool:
        return self.vtrace

    @property
    def board_obstacle(self) -> str | None:
        """Callbacks, or that V-trace does not correct for the age of policies."""
        if not self.vtrace:
            return "vtrace is false, and nothing else corrects for how old the policies of joined actors are"
        return super().board_obstacle

    @property
    def board_keys(self) -> BoardConfig:
        """The keys of joined actors, with a smaller ``window`` if ``max_policy_lag`` needs it.

        All actors together then hold at most half of the steps that are learned within that many updates; the other
        half is for the trainer's own queue.
        """
        board, limit = self.board, self.max_policy_lag
        if limit is None:
            return board
        steps = max(self.fragment_length * self.num_envs_per_worker, board.min_fragment_steps)
        later_passes = (self.num_sgd_iter - 1) * (self.minibatch_buffer_size if self.num_sgd_iter > 1 else 1)
        num_batches = max(limit - later_passes, 1) / self.num_sgd_iter
        window = int(num_batches * self.train_batch_size / 2 / (steps * board.actors))
        return board.model_copy(update={"window": min(max(window, 1), board.window)})

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        thresholds = ("vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold")
        yield from keys_without_effect(
            (self.opt_type == "adam", ("decay", "momentum", "epsilon"), "opt_type is adam"),
            (self.opt_type == "rmsprop", ("adam_epsilon",), "opt_type is rmsprop"),
            (self.vtrace, ("lambda", "use_gae", "use_critic"), "vtrace is true"),
            (not self.vtrace, thresholds, "vtrace is false"),
        )


class IMPALAConfig(VTraceKeys):
    """What is under ``config:`` for ``run: IMPALA``."""

    vtrace: bool = True
    vf_loss_coeff: PositiveOrZero = 0.5
    entropy_coeff: PositiveOrZero = 0.01


class APPOConfig(VTraceKeys):
    """What is under ``config:`` for ``run: APPO``."""

    SUMS_LOSSES = False
    AGENT_COLUMNS = (*VTraceKeys.AGENT_COLUMNS, "info/learner/cur_kl_coeff", "info/num_target_updates")

    vtrace: bool = True
    """Compute advantages by V-trace (Espeholt et al. 2018), with a target network as the learned policy. False: train
    on the advantages that the workers computed. RLlib's default up to 1.1 was false."""

    vf_loss_coeff: PositiveOrZero = 0.5
    """Weight of the value loss: half the squared error, on average over a train batch."""

    entropy_coeff: PositiveOrZero = 0.01
    """Weight of the entropy bonus, on average over a train batch."""

    replay_buffer_num_slots: CountOrZero = 100

    clip_param: Positive = 0.4
    """Distance of the probability ratio from 1 at which it is clipped."""

    use_kl_loss: bool = False
    """Add a penalty on the KL divergence from the target network's policy, or without V-trace from the one that
    acted."""

    kl_coeff: PositiveOrZero = 1.0
    """Initial coefficient of this penalty. At each update of the target network it is multiplied by 1.5 if the
    divergence is above 2 ``kl_target``, and by 0.5 if it is below half of ``kl_target``."""

    kl_target: Positive = 0.01
    """The divergence towards which ``kl_coeff`` is adapted."""

    target_update_frequency: Count = 1
    """Updates of the learner between two updates of the target network, in multiples of ``num_sgd_iter`` *
    ``minibatch_buffer_size``."""

    tau: PositiveFraction = 1.0
    """Share of the way to the learned weights that an update moves the target network's. 1: a copy."""

    @property
    def target_interval(self) -> int:
        """Updates of the learner between two updates of the target network."""
        return self.target_update_frequency * self.num_sgd_iter * self.num_slots

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        is_copied = self.vtrace and self.target_interval == 1 and self.tau == 1
        why_zero = "after each update the target network is a copy of the learned one, so the divergence is 0"
        yield from keys_without_effect(
            (not self.use_kl_loss, ("kl_coeff", "kl_target"), "use_kl_loss is false"),
            (self.use_kl_loss and is_copied, ("use_kl_loss", "kl_coeff", "kl_target"), why_zero),
            (not self.vtrace, ("tau",), "vtrace is false"),
            (not self.vtrace and not self.use_kl_loss, ("target_update_frequency",), "vtrace is false"),
        )


class IMPALAExperiment(Experiment):
    """An experiment with IMPALA."""

    AGENT = "rlexp.agents.impala:IMPALAAgent"
    POLICIES = "rlexp.agents.actor_critic.policy:ActorCriticPolicies"
    run: Literal["IMPALA"]
    config: IMPALAConfig = defaults_of(IMPALAConfig)


class APPOExperiment(Experiment):
    """An experiment with APPO."""

    AGENT = "rlexp.agents.appo:APPOAgent"
    POLICIES = "rlexp.agents.actor_critic.policy:ActorCriticPolicies"
    run: Literal["APPO"]
    config: APPOConfig = defaults_of(APPOConfig)
