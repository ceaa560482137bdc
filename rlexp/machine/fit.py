"""Whether trials fit a machine: its CPUs, GPUs and, as far as is known, memory; and ``--fit``, which makes them fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rlexp.config.keys.capabilities import ReplayNeeds
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.env_ids import is_atari
from rlexp.config.keys.experiment import Experiment, cpus_of_learners, required_cpus, required_gpus
from rlexp.config.keys.trial import Trial
from rlexp.errors import Problem, ResourceError
from rlexp.machine.hardware import Machine

_CPU_SHARES = 100
"""Shares of a CPU are multiples of 1 / 100."""

_FEWEST_WORKERS = 2
"""With one worker, only its envs explore differently; two are kept if the file has as many."""

_SHARE_OF_MEMORY = 0.5
"""Part of the available memory that replay may take; the rest is for workers, batches and the network."""

_STACKED = 4
"""Frames in one stacked observation."""

_BESIDE_OBSERVATIONS = 128
"""Bytes of a transition beside its frames, at most: action, reward, discount, priority, and which frames it shows."""

_PACKED_SHARE = 1 / 6
"""What LZ4 leaves of a frame, at most: of 24 games played at random, from a fifty-ninth (Pong) to a ninth (UpNDown)."""

_GROWTH = 33 / 32
"""Room for frames beside those that replay holds, at most: it grows by so much at a time."""

Changes = dict[str, Any]


def check_fits(trials: Sequence[Trial], machine: Machine) -> None:
    """Raise ResourceError, with a line for each experiment, where one trial needs more than the machine has."""
    problems: dict[str, Problem] = {}
    for trial in trials:
        for problem in _shortfalls(trial.experiment, machine):
            problems.setdefault(problem.message, problem)
    if problems:
        first, *more = problems.values()
        raise ResourceError(first.message, first.hint, more)


def _shortfalls(experiment: Experiment, machine: Machine) -> Iterator[Problem]:
    config = experiment.config
    cpus, gpus = required_cpus(experiment), required_gpus(experiment)
    if cpus > machine.cpus:
        learners = config.learner_processes
        parts = f"{config.num_cpus_for_driver:g} driver + {config.num_workers} workers x {config.num_cpus_per_worker:g}"
        parts += f" + {learners.number} learners x {learners.cpus:g}" if learners else ""
        message = f"{experiment.name} needs {_count(cpus, 'CPU')} ({parts}), this machine has {machine.cpus}"
        yield Problem("", message, _cpu_hint(experiment, machine))
    if gpus > machine.gpus:
        several = "s" if config.learner_processes else ""
        parts = f"{config.num_gpus:g} learner{several} + {config.num_workers} workers x {config.num_gpus_per_worker:g}"
        message = f"{experiment.name} needs {_count(gpus, 'GPU')} ({parts}), this machine has {machine.gpus or 'none'}"
        yield Problem("", message, f"{_gpu_hint(config)}, or --fit" if not machine.gpus else "--fit")
    for name, amount in config.custom_resources_per_worker.items():
        if amount * config.num_workers > 0:
            message = f"{experiment.name} needs {amount:g} {name} for each worker, which this machine does not have"
            yield Problem("", message, "remove custom_resources_per_worker; only a Ray cluster has such resources")
    replay, each = config.replay, bytes_per_transition(experiment)
    if replay is not None and each is not None and each * replay.capacity > machine.memory_total:
        memory, available = _gib(each * replay.capacity), _gib(machine.memory_total)
        message = f"{experiment.name} may need {memory} for replay, this machine has {available}"
        yield Problem("", message, f"-o config.{replay.capacity_key}={machine.memory_total // each}, or --fit")


def _cpu_hint(experiment: Experiment, machine: Machine) -> str:
    """Return overrides that make the experiment fit: one learner where several leave no room, and what workers need."""
    config, learners = experiment.config, experiment.config.learner_processes
    if learners is None or config.num_cpus_for_driver + cpus_of_learners(config) < machine.cpus:
        return f"{_worker_hint(experiment, machine, '')}, or --fit"
    assert config.LEARNERS_KEY is not None
    keys = {config.LEARNERS_KEY: 1, "num_gpus": min(config.num_gpus, learners.gpus)}
    options = " ".join(f"-o config.{key}={value:g}" for key, value in keys.items() if _at(experiment, key) != value)
    single = _changed(experiment, keys)
    fits = required_cpus(single) <= machine.cpus
    return f"{options if fits else _worker_hint(single, machine, f'{options} ')}, or --fit"


def _worker_hint(experiment: Experiment, machine: Machine, options: str) -> str:
    """Return overrides, after ``options``, with fewer workers, or with a smaller share for each."""
    config = experiment.config
    left = machine.cpus - config.num_cpus_for_driver - cpus_of_learners(config)
    if left <= 0:
        return f"{options}-o config.num_cpus_for_driver={machine.cpus} -o config.num_workers=0"
    workers = f"{options}-o config.num_workers={math.floor(left / config.num_cpus_per_worker)}"
    share = _rounded(left / config.num_workers)
    return f"{workers}, or {options}-o config.num_cpus_per_worker={share:g}" if share else workers


def _gpu_hint(config: CommonConfig) -> str:
    """Return overrides that give up the GPUs that are asked for."""
    asked = (key for key in ("num_gpus", "num_gpus_per_worker") if getattr(config, key))
    return " ".join(f"-o config.{key}=0" for key in asked)


def _count(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}" if amount == 1 else f"{amount:g} {unit}s"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def fitted(experiment: Experiment, machine: Machine) -> tuple[Experiment, tuple[str, ...]]:
    """Return the experiment with no more learners, workers, shards, GPUs and replay than the machine holds.

    And what changed.
    """
    changes: list[str] = []
    for change in (_fewer_gpus, _fewer_learners, _fewer_cpus, _fewer_shards, _less_replay):
        keys = {key: value for key, value in change(experiment, machine).items() if _at(experiment, key) != value}
        changes += [
            f"{key}: {_shown(value)} instead of {_shown(_at(experiment, key))} (--fit)" for key, value in keys.items()
        ]
        experiment = _changed(experiment, keys)
    return experiment, tuple(changes)


def _fewer_gpus(experiment: Experiment, machine: Machine) -> Changes:
    """Return no more GPUs than the agent can use and the machine has; the learner's go before the workers'.

    Where learners lose their GPUs, there are as many as GPUs are left, or one.
    """
    config = experiment.config
    learner = min(config.num_gpus, float(config.most_gpus))
    share = config.num_gpus_per_worker if config.WORKERS_USE_GPUS else 0.0
    if learner + share * config.num_workers > machine.gpus:
        learner = min(learner, float(machine.gpus))
        share = min(share, _rounded((machine.gpus - learner) / max(config.num_workers, 1)))
    return {**_learners(config, learner), "num_gpus": learner, "num_gpus_per_worker": share}


def _learners(config: CommonConfig, gpus: float) -> Changes:
    """Return the number of learners where they have fewer ``gpus`` than they ask for."""
    if config.LEARNERS_KEY is None or config.learner_processes is None or gpus >= config.num_gpus:
        return {}
    return {config.LEARNERS_KEY: max(math.floor(gpus), 1)}


def _fewer_learners(experiment: Experiment, machine: Machine) -> Changes:
    """Return so few learners that they take half of the CPUs that the driver leaves, at most."""
    config, learners = experiment.config, experiment.config.learner_processes
    if config.LEARNERS_KEY is None or learners is None or required_cpus(experiment) <= machine.cpus:
        return {}
    left = machine.cpus - min(config.num_cpus_for_driver, machine.cpus / 2)
    number = max(math.floor(left / 2 / learners.cpus), 1) if learners.cpus else learners.number
    number = min(number, learners.number)
    return {config.LEARNERS_KEY: number, "num_gpus": number * learners.gpus}


def _fewer_cpus(experiment: Experiment, machine: Machine) -> Changes:
    config = experiment.config
    if required_cpus(experiment) <= machine.cpus:
        return {}
    room = machine.cpus - cpus_of_learners(config)
    driver = min(config.num_cpus_for_driver, room if config.num_workers == 0 else room / 2)
    left = room - driver
    fewest = min(config.num_workers, _FEWEST_WORKERS)
    workers = min(config.num_workers, max(math.floor(left / max(config.num_cpus_per_worker, 0.01)), fewest))
    share = min(config.num_cpus_per_worker, _rounded(left / max(workers, 1)))
    return {"num_cpus_for_driver": driver, "num_workers": workers, "num_cpus_per_worker": share}


def _fewer_shards(experiment: Experiment, machine: Machine) -> Changes:
    return experiment.config.with_at_most(machine.cpus)


def _less_replay(experiment: Experiment, machine: Machine) -> Changes:
    replay, each = experiment.config.replay, bytes_per_transition(experiment)
    if replay is None or each is None:
        return {}
    fits = math.floor(machine.memory_available * _SHARE_OF_MEMORY / each)
    return {replay.capacity_key: max(min(replay.capacity, fits), replay.least_capacity)}


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _rounded(share: float) -> float:
    return math.floor(share * _CPU_SHARES) / _CPU_SHARES


def _at(experiment: Experiment, key: str) -> Any:
    group, _, name = key.rpartition(".")
    return getattr(getattr(experiment.config, group) if group else experiment.config, name)


def _changed(experiment: Experiment, keys: Changes) -> Experiment:
    """Return the experiment with other values; they need no validation, being smaller than valid ones."""
    config = experiment.config
    for group, own in _by_group(keys):
        below = getattr(config, group).model_copy(update=own) if group else None
        config = config.model_copy(update={group: below} if group else own)
    return experiment.model_copy(update={"config": config})


def _by_group(keys: Changes) -> Iterator[tuple[str, Changes]]:
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        yield group, {name: value}


def bytes_per_transition(experiment: Experiment) -> int | None:
    """Return the bytes of one transition of full replay, an upper bound; None where only the env knows it."""
    config, replay = experiment.config, experiment.config.replay
    if replay is None or not is_atari(experiment.env) or config.preprocessor_pref != "deepmind":
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
    """Return for how many frames of each transition replay has room.

    It is one, and for each fragment whose predecessor went to another shard those that the two share.
    """
    from_elsewhere = 1 - 1 / replay.num_shards
    return _GROWTH * (1 + from_elsewhere * (replay.n_step + stacked - 1) / fragment_length)
