"""DQN and SimpleQ: their keys, and properties for other rooms: replay, conflicts, and keys without effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal

from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common import CommonConfig, FactLine, NetworkNeeds, ReplayNeeds
from rlexp.config.keys.dqn_keys import DQNKeys
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.exploration_keys import EPSILON
from rlexp.config.keys.fields import Conflict, LayerSizes, defaults_of


class DQNConfig(DQNKeys):
    """What is under ``config:`` for ``run: DQN``."""

    WORKERS_USE_GPUS: ClassVar[bool] = False
    ROLLOUT_KEYS: ClassVar[frozenset[str]] = CommonConfig.ROLLOUT_KEYS | {
        *("n_step", "noisy", "soft_q", "parameter_noise", "epsilon_with_noisy", "worker_side_prioritization")
    }
    AGENT_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("info/num_target_updates", "info/num_fragments_lost", "info/mean_importance_weight", "info/adam_step_share"),
        *("info/min_exploration", "info/max_exploration", "info/replay_fill", "info/replay_fill_per_shard"),
        *("info/learner_queue_size", "info/learner_queue_capacity", "info/weight_age", "info/num_stale_priorities"),
        *("info/learner/loss", "info/learner/lr", "info/learner/cur_lr", "info/learner/mean_q"),
        *("info/learner/mean_td_error", "info/learner/grad_norm"),
    )
    DISPLAYED: ClassVar[tuple[FactLine, ...]] = (
        *CommonConfig.DISPLAYED,
        FactLine(
            "data",
            (
                "replay {info/replay_fill:percent} full {info/replay_fill_per_shard:levels}",
                "learner queue {info/learner_queue_size:count}/{info/learner_queue_capacity:count}",
                "weight age {info/weight_age:count}",
            ),
        ),
        FactLine("exploring", ("ε {info/min_exploration..info/max_exploration:short}",)),
        FactLine(
            "board",
            (
                "{info/board/actors:count}/{info/board/seats:count} actors",
                "{info/board/fragments_per_s:count} fragments/s {info/board/bytes_per_s:size}/s",
                "weights {info/board/weights_bytes:size}",
                "again {info/board/num_repeated:count}",
                "refused {info/board/num_refused:count}",
                "leases lost {info/board/num_lost_leases:count}",
            ),
            needs="info/board/actors",
        ),
    )

    SHARED_WITH_OPTIMIZER: ClassVar[tuple[str, ...]] = (
        "buffer_size",
        "learning_starts",
        "prioritized_replay",
        "prioritized_replay_alpha",
        "prioritized_replay_beta",
        "prioritized_replay_eps",
        "final_prioritized_replay_beta",
        "beta_annealing_fraction",
        "schedule_max_timesteps",
        "sample_batch_size",
        "train_batch_size",
        "clip_rewards",
    )
    KEPT_BY_PBT: ClassVar[tuple[str, ...]] = (
        *CommonConfig.KEPT_BY_PBT,
        *("hiddens", "dueling", "noisy", "num_atoms", "v_min", "v_max", "discretize_actions"),
        *("buffer_size", "prioritized_replay", "prioritized_replay_alpha", "checkpoint_replay", "replay_storage"),
        "board",
    )
    """The parent's keys, and keys of replay: a trial with another replay would continue with an empty one."""

    @property
    def replay(self) -> ReplayNeeds:
        """One shard of transitions over ``n_step`` steps."""
        return replace(super().replay, n_step=self.n_step)

    @property
    def network_needs(self) -> NetworkNeeds:
        """A torso, then heads of ``hiddens``, two with ``dueling``; ``noisy`` doubles their weights."""
        model = self.model
        torso = (*model.fcnet_hiddens, *model.post_fcnet_hiddens)
        heads = (*self.hiddens, self.num_atoms)
        filters = model.conv_filters or ()
        channels = (1, *(each[0] for each in filters))
        convolutions = sum(
            before * after * kernel[0] * kernel[1]
            for (before, after), (_, kernel, _) in zip(pairwise(channels), filters, strict=True)
        )
        of_heads = _weights_between((*torso[-1:], *heads)) * (1 + self.dueling) * (1 + self.noisy)
        return NetworkNeeds(
            keys="config.model, config.hiddens, config.num_atoms",
            least_weights=_weights_between(torso) + convolutions + of_heads,
            layer_outputs=sum((*torso, *heads)),
        )

    @property
    def board_keys(self) -> BoardConfig:
        return self.board

    @property
    def board_obstacle(self) -> str | None:
        """Callbacks, as messages do not carry their metrics. Replay accepts transitions of any weights."""
        return "it has callbacks, and joined actors do not send their metrics" if self.callbacks else None

    @property
    def explores_by_epsilon(self) -> bool:
        """True; with ``noisy`` only if ``epsilon_with_noisy`` is true."""
        return super().explores_by_epsilon and (self.epsilon_with_noisy or not self.noisy)

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        """Yield the parent's keys, then keys of noise and network."""
        yield from super().ineffective_keys()
        yield from _keys_without_effect(self)

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then two explorations at once, and atoms in the wrong order."""
        yield from super().conflicts()
        for key in ("noisy", "soft_q"):
            if self.parameter_noise and getattr(self, key):
                message = f"parameter_noise and {key} are both true, but only one of them can explore"
                yield Conflict(("parameter_noise", key), message, f"write parameter_noise: false or {key}: false")
        if self.v_min >= self.v_max:
            message = f"{self.stated('v_min')}, but must be less than v_max, which is {self.v_max}"
            yield Conflict(("v_min", "v_max"), message, "lower v_min or raise v_max")


def _keys_without_effect(config: DQNConfig) -> Iterator[tuple[str, str]]:
    """Yield each such key, and the reason."""
    is_noise_alone = config.noisy and not config.epsilon_with_noisy
    for is_ineffective, keys, reason in (
        (is_noise_alone, ("per_worker_exploration", *EPSILON), "noisy layers explore instead"),
        (not config.noisy, ("sigma0", "epsilon_with_noisy"), "noisy is false"),
        (not config.parameter_noise, ("parameter_noise_initial_stddev",), "parameter_noise is false"),
        (config.num_atoms == 1, ("v_min", "v_max"), "num_atoms is 1"),
        (
            config.learner_precision == "tf32" and config.num_gpus == 0,
            ("learner_precision",),
            "num_gpus is 0, and only GPUs have tf32",
        ),
    ):
        if is_ineffective:
            yield from ((key, reason) for key in keys)


def _weights_between(sizes: Sequence[int]) -> int:
    return sum(fan_in * fan_out for fan_in, fan_out in pairwise(sizes))


class SimpleQConfig(DQNConfig):
    """What is under ``config:`` for ``run: SIMPLEQ``: DQN as in Mnih et al. 2015, without its later parts."""

    double_q: bool = False
    dueling: bool = False
    hiddens: LayerSizes = ()
    prioritized_replay: bool = False


class DQNExperiment(Experiment):
    """An experiment with DQN."""

    AGENT: ClassVar[str] = "rlexp.agents.dqn.agent:DQNAgent"
    POLICIES: ClassVar[str] = "rlexp.agents.dqn.players:DQNPolicies"
    run: Literal["DQN"]
    config: DQNConfig = defaults_of(DQNConfig)


class SimpleQExperiment(DQNExperiment):
    """An experiment with SimpleQ, which DQN's agent trains."""

    run: Literal["SIMPLEQ"]  # type: ignore[assignment]  # a name of its own
    config: SimpleQConfig = defaults_of(SimpleQConfig)
