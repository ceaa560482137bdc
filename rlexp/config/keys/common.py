"""Properties of the keys under ``config`` for rooms that know no algorithm, with the values of most agents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common_keys import CommonKeys
from rlexp.config.keys.fields import RLEXP_ONLY, Conflict, Count, defaults_of
from rlexp.config.keys.model import CUSTOM_MODEL, LAYER_KEYS
from rlexp.config.keys.user_code import UserPart

ActionScaling = Literal["normalized", "clipped"]
"""``normalized``: -1 to 1 is scaled to the bounds of the env, and clipped to them. ``clipped``: to the bounds."""

MOST_CHECKPOINTED_BYTES: Final = 256 * 10**6
"""Most bytes of replay that are written into checkpoints if ``checkpoint_replay`` is null."""


@dataclass(frozen=True)
class LearnerProcesses:
    """Several learners, each in a process of its own."""

    number: int
    """At least 2."""
    cpus: float
    """CPUs that each of them reserves."""
    gpus: float
    """GPUs that each of them reserves."""


@dataclass(frozen=True)
class SequenceNeeds:
    """The form of sequences in replay."""

    length: int
    """Steps that are learned."""
    burn_in: int
    """Steps before them, from which the network only computes its state."""
    stores_states: bool
    """Whether each has the state before its first step."""


@dataclass(frozen=True)
class ReplayNeeds:
    """The properties that decide how much memory an agent's full replay takes."""

    capacity: int
    """Transitions."""
    capacity_key: str
    """The key under ``config`` that gives it."""
    least_capacity: int
    """Transitions below which the agent cannot train."""
    num_shards: int
    n_step: int
    storage: str
    """Name in ``rlexp.replay.storage.STORAGES`` of the storage, unless workers share memory with replay."""
    keeps_whole_observations: bool
    """Whether each transition has observations of its own, instead of frames that transitions share."""
    in_checkpoints: bool | None
    """Whether checkpoints contain it; None: if it has at most MOST_CHECKPOINTED_BYTES."""
    on_device: bool = False
    """Whether its frames are in the memory of the learner's device."""
    workers_send_td_errors: bool = False
    """Whether each transition comes with a first TD error for its priority."""
    shard_processes: int = 0
    """Number of its shards that may have processes of their own."""
    gatherers: int = 0
    """Processes between workers and shards that the keys ask for by number."""
    queued_batches: int = 2
    """Most train batches in memory at the same time."""
    sequences: SequenceNeeds | None = None
    """The form of its rows; None: they are transitions."""

    @property
    def steps_per_row(self) -> int:
        """Steps that a row counts as: transitions are steps, sequences have several."""
        return 1 if self.sequences is None else self.sequences.length


@dataclass(frozen=True)
class NetworkNeeds:
    """Properties of an agent's network that follow from its keys, for any env and number of actions."""

    keys: str
    """Keys that decide about it, in the spelling of files."""
    least_weights: int
    layer_outputs: int
    """Outputs of all layers together, for each row of a batch."""


@dataclass(frozen=True)
class FactLine:
    """A line about a running trial in the live display."""

    label: str
    facts: tuple[str, ...]
    """Texts with metrics of the trial's newest row in braces, each with one of the display's formats, such as
    ``replay {info/replay_fill:percent} full``; two metrics with ``..`` are a range. If a line is too long, its last
    facts are left out."""
    needs: str | None = None
    """A metric without which the line is not shown."""


@dataclass(frozen=True)
class PlayableActions:
    """The actions that an algorithm can choose."""

    spaces: tuple[str, ...]
    """Classes of ``gymnasium.spaces``."""
    needs: str
    """The need in the message for an env with another space."""
    hint: str
    """A hint for the user."""
    hint_for_box: str | None = None
    """The hint for a Box; None: the same as for other spaces."""
    squashes: bool = False
    """Whether the numbers of a Box are chosen between its bounds: they must be floating-point numbers, and have bounds.
    """


@dataclass(frozen=True)
class Caution:
    """A setting that a user may not have meant, though it can be trained."""

    key: str
    """The key under ``config`` that causes it; no caution if the file does not give the key."""
    message: str


_UNSAVED_STATISTICS: Final[Mapping[str, str]] = {
    "NormalizeObservation": "The mean and variance that it finds are in no checkpoint: each worker, evaluation and"
    " exported policy begins with others. observation_filter: MeanStdFilter shares and saves them",
    "NormalizeReward": "episode_reward_mean and evaluations then report its scaled rewards, each worker's by another"
    " scale that no checkpoint has. clip_rewards limits only the rewards that are learned from",
}
"""Consequences of Gymnasium's wrappers with own statistics, and what to use instead."""


def keys_without_effect(*rows: tuple[object, Iterable[str], str]) -> Iterator[tuple[str, str]]:
    """Yield, for each row whose condition is true, each of its keys with its reason."""
    yield from ((key, reason) for is_ineffective, keys, reason in rows if is_ineffective for key in keys)


class CommonConfig(CommonKeys):
    """The keys under ``config:`` of any agent."""

    LEARNERS_KEY: ClassVar[str | None] = None
    """The key that gives the number of learners; None: there is always one."""
    WORKERS_USE_GPUS: ClassVar[bool] = True
    """Whether the agent's rollout workers can use GPUs."""
    MASKS_ACTIONS: ClassVar[bool] = False
    """Whether the agent's networks obey the action masks of an env."""
    ROLLOUT_KEYS: ClassVar[frozenset[str]] = frozenset(
        {"num_workers", "num_envs_per_worker", "sample_batch_size", "batch_mode", "sample_async", "horizon"}
        | {"observation_filter", "synchronize_filters", "clip_rewards", "gamma", "explore", "seed"}
    )
    """Keys that decide what a worker keeps between two fragments; it continues only with the same values."""
    AGENT_COLUMNS: ClassVar[tuple[str, ...]] = ()
    """Metrics of the agent that get columns in ``progress.csv``, even if the first row lacks them."""
    DISPLAYED: ClassVar[tuple[FactLine, ...]] = (
        FactLine(
            "speed",
            (
                "sampled {info/sample_throughput:count}/s",
                "trained {info/train_throughput:count}/s",
                "{info/trained_per_sampled:ratio} trained per sampled",
            ),
        ),
    )
    """The lines of a trial in the live display, beside its progress, reward and bottleneck."""

    SHARED_WITH_OPTIMIZER: ClassVar[tuple[str, ...]] = ()
    """Keys that files may also have under ``optimizer:``, where RLlib copied them."""
    KEPT_BY_PBT: ClassVar[tuple[str, ...]] = (
        *("env_config", "env_wrappers", "model", "observation_filter", "preprocessor_pref", "optimizer", "action_mask"),
        *("num_workers", "min_num_workers", "num_gpus", "num_cpus_for_driver", "num_cpus_per_worker"),
        *("num_gpus_per_worker", "custom_resources_per_worker", "placement"),
    )
    """Keys that pbt cannot change: a trial that copies another one keeps its own network and processes."""

    @property
    def effective_preprocessor_pref(self) -> Literal["deepmind", "rllib"] | None:
        """``preprocessor_pref``, or None if a class of the user replaces it, as in RLlib."""
        return None if self.model.custom_preprocessor is not None else self.preprocessor_pref

    @property
    def fragment_length(self) -> int:
        """``sample_batch_size``; ``auto`` is decided by the numbers of workers and of their environments.

        ``auto`` divides a train batch evenly among all environments, as RLlib 2 does.
        """
        if isinstance(self.sample_batch_size, int):
            return self.sample_batch_size
        return math.ceil(self.whole_train_batch / (max(self.num_workers, 1) * self.num_envs_per_worker))

    @property
    def whole_train_batch(self) -> int:
        """``train_batch_size`` of all workers together."""
        return self.train_batch_size

    @property
    def workers_sample_ahead(self) -> bool:
        """Whether a worker continues sampling while it sends the last fragment."""
        return self.sample_async

    @property
    def is_greedy(self) -> bool:
        """Whether neither workers nor evaluations explore."""
        return not self.explore and not self.evaluation_config.explore

    @property
    def num_reserved_workers(self) -> int:
        """Rollout workers for which a trial reserves room; the others join it when there is room for them."""
        return self.num_workers if self.min_num_workers is None else self.min_num_workers

    @property
    def cpus_of_shards(self) -> float:
        """CPUs that all replay shards together reserve, beside the driver's."""
        return 0.0

    @property
    def needs_one_node(self) -> bool:
        """Whether all processes of a trial must be on the same machine."""
        return False

    @property
    def workers_wait(self) -> bool:
        """Whether workers wait for the learner, so that cores which both want are better used by it."""
        return False

    @property
    def board_obstacle(self) -> str | None:
        """Why actors cannot join a trial over a board; None: they can, and there are ``board_keys``."""
        return "it learns only from what its newest weights have played, which joined actors do not have in time"

    @property
    def board_keys(self) -> BoardConfig | None:
        """The keys of actors that join over a board; None if no actor can."""
        return None

    @property
    def joined_fragment_length(self) -> int:
        """``fragment_length`` of actors that join over a board."""
        least = 0 if self.board_keys is None else self.board_keys.min_fragment_steps
        return max(self.fragment_length, math.ceil(least / self.num_envs_per_worker))

    @property
    def learner_processes(self) -> LearnerProcesses | None:
        """The processes of the learners; None: there is one, in the process of the driver."""
        return None

    @property
    def most_gpus(self) -> int:
        """GPUs that the learners can use: one each."""
        return 1 if self.learner_processes is None else self.learner_processes.number

    @property
    def replay(self) -> ReplayNeeds | None:
        """Its replay; None for an agent without replay."""
        return None

    @property
    def network_needs(self) -> NetworkNeeds | None:
        """What its network needs at least; None if the keys do not tell."""
        return None

    @property
    def playable_actions(self) -> PlayableActions | None:
        """The action spaces that the algorithm can play; None: any."""
        return None

    @property
    def bins_per_action(self) -> int | None:
        """Number of values for each dimension of continuous actions; None: they stay continuous."""
        return None

    @property
    def continuous_actions(self) -> ActionScaling | None:
        """How the env gets continuous actions; None: as the policy chose them."""
        return None

    def user_parts(self) -> Iterator[UserPart]:
        """Yield the user's classes that the keys name; a subclass adds to its parent's."""
        if self.model.custom_model is not None:
            yield self.model.custom_model.as_part(CUSTOM_MODEL, "torch.nn.Module")
        for index, wrapper in enumerate(self.env_wrappers):
            yield wrapper.as_part(f"config.env_wrappers.{index}", "gymnasium.Wrapper")
        if self.model.custom_preprocessor is not None:
            yield self.model.custom_preprocessor.as_part("config.model.custom_preprocessor", "rlexp.envs.Preprocessor")
        yield from self.callback_parts

    @property
    def callback_parts(self) -> tuple[UserPart, ...]:
        """The classes of ``callbacks``."""
        several = len(self.callbacks) > 1
        return tuple(
            each.as_part(f"config.callbacks.{index}" if several else "config.callbacks", "rlexp.callbacks.Callbacks")
            for index, each in enumerate(self.callbacks)
        )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        """Yield each key that has no effect beside the others, and the reason; a subclass adds to its parent's.

        Keys are in the spelling of files: ``lambda``, ``model.vf_share_layers``.
        """
        layers = tuple(f"model.{key}" for key in LAYER_KEYS)
        of_images = ("preprocessor_pref", "model.dim", "model.grayscale", "model.framestack", "model.zero_mean")
        yield from keys_without_effect(
            (self.lr_schedule is not None, ("lr",), "lr_schedule is given"),
            (not self.MASKS_ACTIONS, ("action_mask",), "the agent does not mask actions"),
            (self.model.custom_model is not None, layers, "custom_model has layers of its own"),
            (self.model.custom_preprocessor is not None, of_images, "model.custom_preprocessor is given"),
        )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a number of workers to wait for that the trial does not have."""
        yield from super().conflicts()
        keys, least = ("min_num_workers", "num_workers"), self.min_num_workers
        if least is not None and self.num_workers == 0:
            message = f"{self.stated('min_num_workers')}, but num_workers is 0, so there are no workers to wait for"
            yield Conflict(keys, message, "leave min_num_workers out, or raise num_workers")
        elif least is not None and least > self.num_workers:
            message = f"{self.stated('min_num_workers')}, more than num_workers, which is {self.num_workers}"
            yield Conflict(keys, message, "lower min_num_workers or raise num_workers")

    def cautions(self) -> Iterator[Caution]:
        """Yield settings that a user may not have meant; a subclass adds to its parent's."""
        for name in dict.fromkeys(wrapper.name for wrapper in self.env_wrappers):
            module, _, kind = name.partition(":")
            if module.partition(".")[0] == "gymnasium" and kind in _UNSAVED_STATISTICS:
                yield Caution("env_wrappers", f"names {kind}. {_UNSAVED_STATISTICS[kind]}")

    def with_at_most(self, cpus: int) -> dict[str, int]:
        """Return values for keys, apart from workers, that would use more processes than ``cpus``."""
        return {}

    def env_conflicts(self, env: str) -> Iterator[Conflict]:
        """Yield known conflicts between these keys and the environment ``env``."""
        yield from ()

    def unused_resources(self) -> Iterator[Conflict]:
        """Yield resources that would be reserved, but that the agent does not use."""
        processes, most = self.learner_processes, self.most_gpus
        if self.num_gpus > most:
            users = "the learner uses" if processes is None else f"{processes.number} learners use"
            message = f"num_gpus: {self.num_gpus:g} reserves {self.num_gpus:g} GPUs, but {users} {most}"
            more = f", or {self.LEARNERS_KEY}: {math.ceil(self.num_gpus)}" if self.LEARNERS_KEY else ""
            keys = ("num_gpus", *filter(None, (self.LEARNERS_KEY,)))
            yield Conflict(keys, message, f"write num_gpus: {most}{more}; --fit lowers it for you")
        if self.num_gpus_per_worker and not self.WORKERS_USE_GPUS:
            message = f"num_gpus_per_worker: {self.num_gpus_per_worker:g} reserves GPUs, but workers use none"
            hint = "write num_gpus_per_worker: 0; --fit lowers it for you"
            yield Conflict(("num_gpus_per_worker",), message, hint)


class ScheduledKeys(CommonConfig):
    """The key of agents whose schedules, of exploration or of replay, may be given as fractions of the training."""

    schedule_max_timesteps: Count = 100_000
    """Steps of which ``exploration_fraction`` (sampled) and, with replay, ``beta_annealing_fraction`` (trained) are
    fractions."""


BOARD_LINE: Final = FactLine(
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
)


class JoinableKeys(CommonConfig):
    """The keys of agents that take what joined actors play."""

    board: Annotated[BoardConfig, RLEXP_ONLY] = defaults_of(BoardConfig)
    """How actors join the trial over a board, with ``rlexp run --board URL``."""

    @property
    def board_keys(self) -> BoardConfig:
        return self.board

    @property
    def board_obstacle(self) -> str | None:
        """Callbacks, as messages do not carry their metrics."""
        return "it has callbacks, and joined actors do not send their metrics" if self.callbacks else None
