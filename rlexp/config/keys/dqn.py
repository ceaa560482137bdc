"""DQN: its keys, and what other rooms ask of an agent: its replay, conflicts, and keys that have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common import Caution, CommonConfig, FactLine, NetworkNeeds, PlayableActions, ReplayNeeds
from rlexp.config.keys.dqn_keys import DQNKeys
from rlexp.config.keys.env_ids import has_continuous_actions
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import Conflict, defaults_of

_EPSILON = (
    "exploration_initial_eps",
    "exploration_final_eps",
    "exploration_fraction",
    "epsilon_timesteps",
    "exploration_warmup_timesteps",
)
_BETA = (
    "prioritized_replay_beta",
    "final_prioritized_replay_beta",
    "beta_annealing_fraction",
    "prioritized_replay_beta_annealing_timesteps",
)
_PRIORITIES = (
    *("prioritized_replay_alpha", "prioritized_replay_eps", "worker_side_prioritization"),
    *("importance_weight_normalization", *_BETA),
)

_LEAST_EPS = 1e-3
_MOST_ADAM_EPSILON = 1e-5


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
    """And those of replay that does not fit into another one: the trial would continue with an empty replay."""

    @property
    def replay(self) -> ReplayNeeds:
        """All in one shard."""
        return ReplayNeeds(
            capacity=self.buffer_size,
            capacity_key="buffer_size",
            least_capacity=self.train_batch_size,
            num_shards=1,
            n_step=self.n_step,
            storage="compressed_frames" if self.compress_observations else "frames",
            keeps_whole_observations=False,
            in_checkpoints=self.checkpoint_replay,
            workers_send_td_errors=self.worker_side_prioritization,
        )

    @property
    def network_needs(self) -> NetworkNeeds:
        """A torso, then heads of ``hiddens``, two with ``dueling``, whose weights ``noisy`` doubles."""
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
        """Callbacks, whose metrics no message carries: replay takes what any weights have played."""
        return "it has callbacks, and joined actors do not send their metrics" if self.callbacks else None

    @property
    def playable_actions(self) -> PlayableActions:
        """DQN computes a Q-value for each action."""
        return PlayableActions(
            spaces=("Discrete",),
            needs="DQN and APEX need a Discrete one",
            hint="wrap the env so that it takes a finite number of actions",
            hint_for_box="discretize_actions: 5 chooses among 5 values per dimension",
        )

    @property
    def bins_per_action(self) -> int | None:
        """DQN chooses among a finite number of actions."""
        return self.discretize_actions

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        """Yield the parent's, then those of exploration, priorities and network."""
        yield from super().ineffective_keys()
        yield from _keys_without_effect(self)

    def cautions(self) -> Iterator[Caution]:
        """Yield the parent's, then importance-sampling weights that correct less and less, or shrink the steps."""
        yield from super().cautions()
        first, last = self.prioritized_replay_beta, self.resolved_final_prioritized_replay_beta
        if self.prioritized_replay and last < first:
            message = f"decreases from {first:g} to final_prioritized_replay_beta: {last:g}"
            constant = "For a constant beta, write final_prioritized_replay_beta: null"
            yield Caution("prioritized_replay_beta", f"{message}. {constant}")
        if self._shrinks_steps:
            yield Caution(
                "adam_epsilon",
                f"is {self.adam_epsilon:g}, and importance weights are small beside those of rows with "
                f"prioritized_replay_eps: {self.prioritized_replay_eps:g}. Steps may be a tenth of lr: see "
                "info/adam_step_share in the results. importance_weight_normalization: batch makes them larger",
            )

    @property
    def _shrinks_steps(self) -> bool:
        """Whether gradients are likely to be small beside ``adam_epsilon``: seen on MinAtar and Pong with 1.5e-4."""
        has_small_weights = self.prioritized_replay and self.importance_weight_normalization == "buffer"
        return has_small_weights and self.prioritized_replay_eps < _LEAST_EPS and self.adam_epsilon > _MOST_ADAM_EPSILON

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield continuous actions that are not discretized: a Q-network has a value for each of a finite number."""
        if self.discretize_actions is None and has_continuous_actions(env, self.env_config):
            message = f"env {env} has continuous actions; DQN and APEX need discrete ones"
            yield Conflict(("env",), message, "discretize_actions: 5 chooses among 5 values per dimension")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the parent's conflicts, then batches larger than replay, and two explorations at once."""
        yield from super().conflicts()
        if self.train_batch_size > self.buffer_size:
            message = f"{self.stated('train_batch_size')}, more than buffer_size, which is {self.buffer_size}"
            hint = "lower train_batch_size or raise buffer_size"
            yield Conflict(("train_batch_size", "buffer_size"), message, hint)
        for key in ("noisy", "soft_q"):
            if self.parameter_noise and getattr(self, key):
                message = f"parameter_noise and {key} are both true, but only one of them can explore"
                yield Conflict(("parameter_noise", key), message, f"write parameter_noise: false or {key}: false")
        if self.v_min >= self.v_max:
            message = f"{self.stated('v_min')}, but must be less than v_max, which is {self.v_max}"
            yield Conflict(("v_min", "v_max"), message, "lower v_min or raise v_max")


def _keys_without_effect(config: DQNConfig) -> Iterator[tuple[str, str]]:
    """Yield each of them, and the reason."""
    is_noise_alone = config.noisy and not config.epsilon_with_noisy
    for is_ineffective, keys, reason in (
        (is_noise_alone, ("per_worker_exploration", *_EPSILON), "noisy layers explore instead"),
        (config.soft_q, ("per_worker_exploration", *_EPSILON), "soft_q explores instead"),
        (_has_ladder(config), _EPSILON, "per_worker_exploration gives each worker a constant epsilon"),
        (config.epsilon_timesteps is not None, ("exploration_fraction",), "epsilon_timesteps is given"),
        (not config.prioritized_replay, _PRIORITIES, "prioritized_replay is false"),
        (
            config.prioritized_replay_beta_annealing_timesteps is not None,
            ("beta_annealing_fraction",),
            "prioritized_replay_beta_annealing_timesteps is given",
        ),
        (not config.per_worker_exploration, ("epsilon_ladder",), "per_worker_exploration is false"),
        (not config.noisy, ("sigma0", "epsilon_with_noisy"), "noisy is false"),
        (not config.parameter_noise, ("parameter_noise_initial_stddev",), "parameter_noise is false"),
        (not config.soft_q, ("softmax_temp",), "soft_q is false"),
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


def _has_ladder(config: DQNConfig) -> bool:
    """Return whether ``per_worker_exploration`` decides, and evaluation does not use the end of the schedule."""
    falls_back = config.evaluation_config.explore and config.evaluation_config.exploration_final_eps is None
    return config.per_worker_exploration and not falls_back


class DQNExperiment(Experiment):
    """An experiment with DQN."""

    AGENT: ClassVar[str] = "rlexp.agents.dqn.agent:DQNAgent"
    POLICIES: ClassVar[str] = "rlexp.agents.dqn.players:DQNPolicies"
    run: Literal["DQN"]
    config: DQNConfig = defaults_of(DQNConfig)
