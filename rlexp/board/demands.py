"""Limits on what a task may ask of an actor, a client or a trainer: the largest numbers, and memory in bytes.

The numbers come from a stranger, so they are compared before anything is made from them. One table is for all machines,
the rest depends on what this machine has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp.cluster.room.shortfalls import gib
from rlexp.config.keys.async_samples_keys import AsyncSamplesKeys
from rlexp.config.keys.common import CommonConfig, NetworkNeeds
from rlexp.config.keys.model import RecurrentModelConfig
from rlexp.config.keys.replay_keys import ReplayKeys
from rlexp.models.action_distributions import actions_of
from rlexp.models.memory import PreviousStep
from rlexp.rollout.sequences import ReplaySequences
from rlexp.sample_batch import has_frames, num_frames

Spaces = tuple[gym.Space[Any], gym.Space[Any]]
ANY: Final = 10**12
"""Limit of a number that is only counted, compared or multiplied with: steps, rates, bounds of values."""
_WEEK_S: Final = 7 * 24 * 3600
MOST: Final[Mapping[str, float]] = {
    "num_samples": 10_000,
    "checkpoint_evaluation_episodes": 10_000,
    "keep_checkpoints_num": 100_000,
    "time_budget_s": 100 * _WEEK_S,
    "config.num_workers": 10_000,
    "config.min_num_workers": 10_000,
    "config.num_envs_per_worker": 1024,
    "config.num_cpus_per_worker": 256,
    "config.num_gpus_per_worker": 256,
    "config.num_threads_per_worker": 256,
    "config.num_cpus_for_driver": 1024,
    "config.num_gpus": 256,
    "config.sample_timeout_s": _WEEK_S,
    "config.sample_batch_size": 100_000,
    "config.train_batch_size": 1_000_000,
    "config.min_iter_time_s": _WEEK_S,
    "config.metrics_smoothing_episodes": 1_000_000,
    "config.evaluation_num_episodes": 10_000,
    "config.evaluation_timeout_s": _WEEK_S,
    "config.buffer_size": 1_000_000_000,
    "config.discretize_actions": 10_000,
    "config.num_atoms": 10_000,
    "config.n_step": 10_000,
    "config.hiddens": 1_000_000,
    "config.model.fcnet_hiddens": 1_000_000,
    "config.model.post_fcnet_hiddens": 1_000_000,
    "config.model.conv_filters": 100_000,
    "config.model.dim": 2048,
    "config.model.lstm_cell_size": 1_000_000,
    "config.model.max_seq_len": 100_000,
    "config.burn_in": 100_000,
    "config.replay_sequence_length": 100_000,
    "config.optimizer.num_replay_buffer_shards": 1024,
    "config.optimizer.num_cpus_per_shard": 256,
    "config.optimizer.sample_queue_depth": 1000,
    "config.optimizer.replay_queue_depth": 1000,
    "config.optimizer.learner_queue_depth": 10_000,
    "config.optimizer.gatherers": 1024,
    "config.learner_queue_size": 10_000,
    "config.minibatch_buffer_size": 10_000,
    "config.replay_proportion": 1000,
    "config.replay_buffer_num_slots": 1_000_000,
    "config.max_sample_requests_in_flight_per_worker": 1000,
    "config.board.actors": 10_000,
    "config.board.min_actors": 10_000,
    "config.board.window": 10_000,
    "config.board.min_fragment_steps": 100_000,
    "config.board.patience_s": _WEEK_S,
    "config.board.weights_period_s": _WEEK_S,
    "config.board.recovery_period_s": _WEEK_S,
    "config.board.max_fragment_mb": 1024,
    "config.board.max_weights_mb": 16_384,
    "config.board.max_strikes": 1_000_000,
}
"""Limits of the numbers that decide about memory, processes, threads and waiting; ANY is for all others."""
MOST_TRIALS: Final = 100
"""Most trials of a file that is read only to find that a task has one trial: each costs milliseconds."""
MOST_ITEMS: Final = 1000
MOST_CHARACTERS: Final = 1 << 16
"""Most characters; the bounds of a space with a thousand numbers have 30,000."""
MOST_LEVELS: Final = 16
_LONGEST_SHOWN: Final = 10**16
_LARGEST: Final = 10**300
"""The text for larger integers, which no float holds."""
_MOST_LADDER_PLACES: Final = 1_000_000
"""Most envs of all players together: each has a place on the ladder of ε."""
_PROCESSES_PER_CPU: Final = 8
"""Most processes per CPU of a trial: each takes memory and starts, even if it reserves little or no CPU."""
_LEAST_ROW_BYTES: Final = 32
"""Bytes of a transition without its observations and actions: reward, discount, priority."""
_BYTES_OF_STEP: Final = 24
"""Bytes per step of a sequence: action, return, discount, and the steps of its return."""
_FRAME_NUMBER_BYTES: Final = 8
_ENV_BYTES: Final = 4 << 20
_MOST_WEIGHTS: Final = 1_000_000_000
"""Most weights of a network, even if a machine has memory for more."""
_FLOAT_BYTES: Final = 4
_COPIES_AT_ACTOR: Final = 3
"""Copies of the weights at an actor: acting ones, arriving ones, and the message."""
_COPIES_AT_TRAINER: Final = 8
"""Copies of the weights at a trainer: learned, target, gradient, two moments, and published and saved ones."""
_COPIES_OF_OUTPUTS: Final = 5
"""Copies of a layer's outputs in an update: the outputs, what their activations keep, and the gradients of both."""
_FRAGMENTS_IN_HAND: Final = 3
"""Fragments beside the ones in the window: one each being played, computed and packed."""


def number_excess(experiment: Any) -> str | None:
    """Return the first value of an experiment that exceeds a task's limits: its key, the number and the limit."""
    return next(_excesses(experiment, "", 1), None)


def actor_excess(
    config: CommonConfig, memory: int, spaces: Spaces | None = None, num_weights: int | None = None
) -> str | None:
    """Return the needs of a task's actor beyond ``memory`` bytes, by its ``config``; None if there are none.

    Each number is within its limit: see :func:`number_excess`. ``spaces``, of observations and actions, and
    ``num_weights`` are known after an env was made; without them, the least possible ones are used.
    """
    envs, board = config.num_envs_per_worker, config.board_keys
    assert board is not None  # others have no actors
    players = config.num_workers + board.actors
    if players * envs > _MOST_LADDER_PLACES:
        product = "(config.num_workers + config.board.actors) x config.num_envs_per_worker"
        return f"{product} is {players * envs:,}, and at most {_MOST_LADDER_PLACES:,} is allowed"
    wanted = [network_excess(config, memory)]
    if num_weights is not None:
        needed = _COPIES_AT_ACTOR * _FLOAT_BYTES * num_weights
        wanted.append(_beyond(memory, needed, f"a network (config.model) of {num_weights:,} weights"))
    rows = config.joined_fragment_length * envs
    fragments = f"config.board.window of {board.window:,} fragments of {rows:,} rows (config.sample_batch_size,"
    fragments += " config.board.min_fragment_steps, config.num_envs_per_worker)"
    row_bytes = _LEAST_ROW_BYTES if spaces is None else bytes_of_row(config, *spaces)
    wanted.append(_beyond(memory, rows * row_bytes * (board.window + _FRAGMENTS_IN_HAND), fragments))
    form = _sequences_of(config)
    if form is not None:
        steps, step_bytes = envs * form.num_obs, _LEAST_ROW_BYTES if spaces is None else bytes_of_step(config, *spaces)
        what = f"sequences of {form.num_obs:,} observations (config.burn_in, config.model.max_seq_len) of {envs:,} envs"
        wanted.append(_beyond(memory, steps * step_bytes, what))
    wanted.append(_beyond(memory, envs * _ENV_BYTES, f"config.num_envs_per_worker of {envs:,} envs"))
    return next(filter(None, wanted), None)


def network_excess(config: CommonConfig, memory: int, copies: int = _COPIES_AT_ACTOR) -> str | None:
    """Return that the network of ``config``, or its accepted weights, needs more than ``memory`` bytes.

    This uses the keys only; None if they do not show it.
    """
    network, board = config.network_needs, config.board_keys
    if network is not None:
        weights = network.least_weights
        what = f"a network ({network.keys}) of {weights:,} weights or more"
        if weights > _MOST_WEIGHTS:
            return f"{what} is asked for, and at most {_MOST_WEIGHTS:,} are allowed"
        if message := _beyond(memory, copies * _FLOAT_BYTES * weights, what):
            return message
    if board is None:
        return None
    accepted = f"config.board.max_weights_mb of {_shown(board.max_weights_mb)} MB"
    return _beyond(memory, int(2 * board.max_weights_mb * 1e6), accepted)


def trainer_excess(config: CommonConfig, cpus: float, memory: int, spaces: Spaces | None = None) -> str | None:
    """Return the needs of a task's trainer beyond its CPUs or memory, by its ``config``; None if there are none.

    ``spaces``, of observations and actions, are known after an env was made; without, the least are used.
    """
    step_bytes = _LEAST_ROW_BYTES if spaces is None else _LEAST_ROW_BYTES + bytes_of_step(config, *spaces)
    replay = config.replay
    shards, gatherers = (0, 0) if replay is None else (replay.shard_processes, replay.gatherers)
    processes, most = config.num_workers + shards + gatherers, int(_PROCESSES_PER_CPU * max(cpus, 1))
    if processes > most:
        parts = f"config.num_workers of {config.num_workers:,}, {shards:,} shards and {gatherers:,} gatherers"
        return f"{parts} are {processes:,} processes, and at most {most:,} ({_PROCESSES_PER_CPU} per CPU) are allowed"
    envs = config.num_envs_per_worker * max(config.num_workers, 1)
    steps = f"config.sample_batch_size of {config.fragment_length:,} steps in each of config.num_envs_per_worker envs"
    wanted = [
        _beyond(memory, envs * _ENV_BYTES, f"config.num_workers x config.num_envs_per_worker, {envs:,} envs,"),
        _beyond(memory, config.fragment_length * envs * step_bytes, steps),
    ]
    wanted.append(network_excess(config, memory, _COPIES_AT_TRAINER))
    if isinstance(config, AsyncSamplesKeys):
        num_batches = config.learner_queue_size + config.minibatch_buffer_size
        rows = config.replay_buffer_num_slots * config.joined_fragment_length * config.num_envs_per_worker
        wanted += [
            *_batch_excesses(config.train_batch_size, num_batches, step_bytes, config.network_needs, memory),
            _beyond(memory, rows * step_bytes, f"config.replay_buffer_num_slots of {rows:,} rows"),
        ]
    if replay is not None and isinstance(config, ReplayKeys):
        replay_key = f"config.{replay.capacity_key}"
        wanted += [
            *_batch_excesses(_seen_by_batch(config), replay.queued_batches, step_bytes, config.network_needs, memory),
            _beyond(memory, replay.capacity * _LEAST_ROW_BYTES, f"{replay_key} of {replay.capacity:,} rows"),
        ]
    return next(filter(None, wanted), None)


def bytes_of_space(space: gym.Space[Any]) -> int:
    """Return the bytes of one value of an array's space."""
    return math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize


def bytes_of_step(config: CommonConfig, observations: gym.Space[Any], actions: gym.Space[Any]) -> int:
    """Return the bytes of a step in a worker: observation, action, and what a recurrent network had before."""
    return bytes_of_space(observations) + bytes_of_space(actions) + sum(_bytes_of_memory(config, actions))


def bytes_of_row(config: CommonConfig, observations: gym.Space[Any], actions: gym.Space[Any]) -> int:
    """Return the most bytes of a row of a fragment."""
    form, (state, previous), seen = (
        _sequences_of(config),
        _bytes_of_memory(config, actions),
        bytes_of_space(observations),
    )
    if form is None:
        return 2 * (seen + bytes_of_space(actions)) + state + previous
    if not has_frames(observations.shape or (), np.dtype(observations.dtype)):
        return form.num_obs * (seen + previous) + form.length * _BYTES_OF_STEP + state
    numbers = num_frames(observations.shape or ()) * _FRAME_NUMBER_BYTES
    return 2 * seen + form.num_obs * (numbers + previous) + form.length * _BYTES_OF_STEP + state


def bytes_in_replay(config: CommonConfig, observations: gym.Space[Any], actions: gym.Space[Any]) -> int:
    """Return the most bytes of all rows of a full replay, before compression; config.replay is not None."""
    replay, form, row = config.replay, _sequences_of(config), bytes_of_row(config, observations, actions)
    assert replay is not None
    if form is not None and has_frames(observations.shape or (), np.dtype(observations.dtype)):
        # The steps of a sequence are new; its burn-in has the frames of earlier ones.
        row += (form.length + form.n_step) * bytes_of_space(observations)
    return replay.capacity // replay.steps_per_row * (row + _LEAST_ROW_BYTES)


def _bytes_of_memory(config: CommonConfig, actions: gym.Space[Any]) -> tuple[int, int]:
    """Return the bytes of a recurrent network's state, and of what it sees of the step before; 0 for others."""
    model = config.model
    if not isinstance(model, RecurrentModelConfig) or not model.use_lstm:
        return 0, 0
    previous = PreviousStep.of(model, actions_of(actions)).num_numbers
    return 2 * _FLOAT_BYTES * model.lstm_cell_size, _FLOAT_BYTES * previous


def _sequences_of(config: CommonConfig) -> ReplaySequences | None:
    replay = config.replay
    return None if replay is None or replay.sequences is None else ReplaySequences.of(replay, config.gamma)


def _seen_by_batch(config: ReplayKeys) -> int:
    """Return how many observations a train batch has: a sequence also has its burn-in and the end of its return."""
    form = _sequences_of(config)
    return config.train_batch_size if form is None else math.ceil(config.train_batch_size / form.length) * form.num_obs


def _excesses(value: Any, key: str, level: int) -> Iterator[str]:
    if level > MOST_LEVELS:
        yield f"{key} is nested deeper than {MOST_LEVELS} levels"
    elif isinstance(value, Mapping | list | tuple):
        if len(value) > MOST_ITEMS:
            yield f"{key} has {len(value):,} items, and at most {MOST_ITEMS:,} are allowed"
            return
        items = value.items() if isinstance(value, Mapping) else ((None, item) for item in value)
        for name, item in items:
            yield from _excesses(item, key if name is None else f"{key}.{name}"[-100:].lstrip("."), level + 1)
    elif isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            yield f"{key} has {len(value):,} characters, and at most {MOST_CHARACTERS:,} are allowed"
    elif isinstance(value, int | float) and not abs(value) <= MOST.get(key, ANY):
        yield f"{key} is {_shown(value)}, and at most {_shown(MOST.get(key, ANY))} is allowed"


def _batch_excesses(
    rows: int, num_queued: int, row_bytes: int, network: NetworkNeeds | None, memory: int
) -> Iterator[str | None]:
    """Yield the needs beyond ``memory`` of the waiting batches of ``rows``, and of an update by one of them."""
    what = f"config.train_batch_size of {rows:,} rows in"
    yield _beyond(memory, rows * row_bytes * num_queued, f"{what} {num_queued:,} queued batches")
    if network is not None:
        outputs = network.layer_outputs
        needed = rows * outputs * _FLOAT_BYTES * _COPIES_OF_OUTPUTS
        yield _beyond(memory, needed, f"{what} an update of layers of {outputs:,} outputs")


def _beyond(memory: int, needed: int, what: str) -> str | None:
    if needed <= memory:
        return None
    return f"{what} needs {gib(needed)} or more, and {gib(memory)} are allowed"


def _shown(number: float) -> str:
    if abs(number) < _LONGEST_SHOWN:
        return f"{number:,.0f}" if float(number).is_integer() else f"{number:,g}"
    return f"{number:.3g}" if isinstance(number, float) else f"{min(max(number, -_LARGEST), _LARGEST):.3g}"
