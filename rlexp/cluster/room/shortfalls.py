"""A trial's needs beyond one machine, with memory for replay, and the overrides that make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from rlexp.cluster.room.machine import Machine
from rlexp.config.keys.common import CommonConfig, ReplayNeeds
from rlexp.config.keys.env_ids import has_game_frames
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import cpus_of_learners, required_cpus, required_gpus
from rlexp.errors import Problem

Changes = dict[str, Any]
"""Keys, such as ``optimizer.debug``, with their new values."""

SHARD_CPUS: Final = "optimizer.num_cpus_per_shard"

_CPU_SHARES = 100
"""Shares of a CPU are multiples of 1 / 100."""


def rounded(share: float) -> float:
    """Return a share of a CPU, rounded down."""
    return math.floor(share * _CPU_SHARES) / _CPU_SHARES


def at(experiment: Experiment, key: str) -> Any:
    """Return the value of a key under ``config``, such as ``optimizer.debug``."""
    group, _, name = key.rpartition(".")
    return getattr(getattr(experiment.config, group) if group else experiment.config, name)


def changed(experiment: Experiment, keys: Changes) -> Experiment:
    """Return the experiment with other values, which are smaller than valid ones and need no validation."""
    config = experiment.config
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        own = {name: value}
        below = getattr(config, group).model_copy(update=own) if group else None
        config = config.model_copy(update={group: below} if group else own)
    return experiment.model_copy(update={"config": config})


_STACKED = 4
"""Frames in one stacked observation."""

_BESIDE_OBSERVATIONS = 128
"""Most bytes of a transition beside its frames: action, reward, discount, priority, and the numbers of its frames."""

_PACKED_SHARE = 1 / 6
"""Largest share that LZ4 leaves of a frame: for 24 games played at random, from 1/59 (Pong) to 1/9 (UpNDown)."""

_GROWTH = 33 / 32
"""Largest share of room for frames beyond the ones that replay holds, as it grows by so much at a time."""


def replay_bytes(experiment: Experiment) -> int:
    """Return an upper bound of replay's bytes; 0 without replay, and if only the env knows it."""
    replay, each = experiment.config.replay, bytes_per_transition(experiment)
    return 0 if replay is None or each is None else each * replay.capacity


def bytes_per_transition(experiment: Experiment) -> int | None:
    """Return an upper bound of the bytes of one transition in full replay; None if only the env knows it."""
    config, replay = experiment.config, experiment.config.replay
    is_prepared_only = config.effective_preprocessor_pref == "deepmind" and not config.env_wrappers
    if replay is None or not has_game_frames(experiment.env, config.env_config) or not is_prepared_only:
        return None
    frame, stacked = config.model.atari_dim**2, _STACKED if config.model.framestack else 1
    if replay.on_device and config.num_gpus:
        return _BESIDE_OBSERVATIONS
    if replay.keeps_whole_observations:
        return _BESIDE_OBSERVATIONS + 2 * stacked * frame
    packed = _PACKED_SHARE if replay.storage == "compressed_frames" else 1.0
    return _BESIDE_OBSERVATIONS + math.ceil(
        frame * packed * frames_per_transition(replay, config.fragment_length, stacked)
    )


def frames_per_transition(replay: ReplayNeeds, fragment_length: int, stacked: int) -> float:
    """Return the number of frames per transition for which replay has room.

    It is one, and the shared frames for each fragment whose predecessor went to another shard.
    """
    from_elsewhere = 1 - 1 / replay.num_shards
    return _GROWTH * (1 + from_elsewhere * (replay.n_step + stacked - 1) / fragment_length)


def shortfalls(experiment: Experiment, machine: Machine) -> Iterator[Problem]:
    """Yield one trial's needs beyond what the machine has, each with overrides that make it fit."""
    config = experiment.config
    cpus, gpus = required_cpus(experiment), required_gpus(experiment)
    if cpus > machine.cpus:
        message = f"{experiment.name} needs {count(cpus, 'CPU')} ({cpu_parts(config)}), this machine has {machine.cpus}"
        yield Problem("", message, _cpu_hint(experiment, machine))
    if gpus > machine.gpus:
        message = f"{experiment.name} needs {count(gpus, 'GPU')} ({gpu_parts(config)})"
        message += f", this machine has {machine.gpus or 'none'}"
        yield Problem("", message, f"{gpu_hint(config)}, or --fit" if not machine.gpus else "--fit")
    for name, amount in config.custom_resources_per_worker.items():
        if amount * config.num_workers > 0:
            message = f"{experiment.name} needs {amount:g} {name} for each worker, which this machine does not have"
            yield Problem("", message, "remove custom_resources_per_worker; only a Ray cluster has such resources")
    replay, each = config.replay, bytes_per_transition(experiment)
    if replay is not None and each is not None and each * replay.capacity > machine.memory_total:
        memory, available = gib(each * replay.capacity), gib(machine.memory_total)
        message = f"{experiment.name} may need {memory} for replay, this machine has {available}"
        yield Problem("", message, f"-o config.{replay.capacity_key}={machine.memory_total // each}, or --fit")


def cpu_parts(config: CommonConfig) -> str:
    """Return the parts that reserve CPUs: ``1 driver + 4 workers x 1``."""
    learners = config.learner_processes
    parts = f"{config.num_cpus_for_driver:g} driver"
    parts += f" + {config.cpus_of_shards:g} shards" if config.cpus_of_shards else ""
    parts += f" + {config.num_reserved_workers} workers x {config.num_cpus_per_worker:g}"
    return parts + (f" + {learners.number} learners x {learners.cpus:g}" if learners else "")


def gpu_parts(config: CommonConfig) -> str:
    """Return the parts that reserve GPUs: ``1 learner + 4 workers x 0.25``."""
    several = "s" if config.learner_processes else ""
    workers = f"{config.num_reserved_workers} workers x {config.num_gpus_per_worker:g}"
    return f"{config.num_gpus:g} learner{several} + {workers}"


def workers_key(config: CommonConfig) -> str:
    """Return the key for the number of workers for which a trial reserves room."""
    return "num_workers" if config.min_num_workers is None else "min_num_workers"


def _cpu_hint(experiment: Experiment, machine: Machine) -> str:
    """Return overrides that make the experiment fit: one learner if several leave no room, and what workers need."""
    config, learners = experiment.config, experiment.config.learner_processes
    if config.cpus_of_shards:
        return f"-o config.{SHARD_CPUS}=0, or --fit"
    if learners is None or config.num_cpus_for_driver + cpus_of_learners(config) < machine.cpus:
        return f"{_worker_hint(experiment, machine, '')}, or --fit"
    assert config.LEARNERS_KEY is not None
    keys = {config.LEARNERS_KEY: 1, "num_gpus": min(config.num_gpus, learners.gpus)}
    options = " ".join(f"-o config.{key}={value:g}" for key, value in keys.items() if at(experiment, key) != value)
    single = changed(experiment, keys)
    fits = required_cpus(single) <= machine.cpus
    return f"{options if fits else _worker_hint(single, machine, f'{options} ')}, or --fit"


def _worker_hint(experiment: Experiment, machine: Machine, options: str) -> str:
    """Return overrides, after ``options``, with fewer workers, or with a smaller share for each."""
    config = experiment.config
    left = machine.cpus - config.num_cpus_for_driver - cpus_of_learners(config)
    if left <= 0:
        return f"{options}-o config.num_cpus_for_driver={machine.cpus} -o config.{workers_key(config)}=0"
    workers = f"{options}-o config.{workers_key(config)}={math.floor(left / config.num_cpus_per_worker)}"
    share = rounded(left / config.num_reserved_workers)
    return f"{workers}, or {options}-o config.num_cpus_per_worker={share:g}" if share else workers


def gpu_hint(config: CommonConfig) -> str:
    """Return overrides that give up the requested GPUs."""
    asked = (key for key in ("num_gpus", "num_gpus_per_worker") if getattr(config, key))
    return " ".join(f"-o config.{key}=0" for key in asked)


def count(amount: float, unit: str) -> str:
    """Return an amount with its unit, in the plural where it needs one."""
    return f"{amount:g} {unit}" if amount == 1 else f"{amount:g} {unit}s"


def gib(number: float) -> str:
    """Return ``number`` bytes in GiB."""
    return f"{number / 2**30:.1f} GiB"
