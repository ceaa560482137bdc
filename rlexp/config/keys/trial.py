"""Trial: one variant of an experiment's grid, with its own name and seed; the unit that is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlexp.config.keys.experiment import Experiment
from rlexp.seeding import derive_seed

MAX_NAME_LENGTH = 100
"""Characters in a trial's name; file systems allow 255 for a folder, and the name is part of longer ones."""

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._,=+-]+")
_NAMED_ANYWAY = frozenset({"env"})


@dataclass(frozen=True)
class Trial:
    """One run of one agent: everything is decided."""

    index: int
    """Position among all trials of the plan, from 0."""
    name: str
    """Its folder: ``00003-APEX-CartPole-v1-lr=0.001-sample=1``."""
    experiment: Experiment
    """One variant: no grid, ``num_samples`` 1, ``config.seed`` a number."""
    varied: Mapping[str, Any]
    """What the grid varies and its value here; keys of ``config`` without that word: ``lr``, ``stop.time_total_s``."""
    sample: int
    """Which of the experiment's ``num_samples`` this is, from 0."""


def trial_of(index: int, experiment: Experiment, varied: Mapping[str, Any], sample: int) -> Trial:
    """Return the trial of a variant with the seed of its nth sample."""
    name = trial_name(index, experiment.run, experiment.env, varied, sample)
    return Trial(index, name, experiment.model_copy(update={"num_samples": 1}), varied, sample)


def trial_name(index: int, run: str, env: str, varied: Mapping[str, Any], sample: int) -> str:
    """Return a name that is a safe folder, unique by its index, and no longer than MAX_NAME_LENGTH."""
    parts = [f"{index:05d}", run, env]
    variations = ",".join(f"{key}={_short(value)}" for key, value in varied.items() if key not in _NAMED_ANYWAY)
    if variations:
        parts.append(variations)
    suffix = f"-sample={sample}" if sample else ""
    name = "-".join(_NOT_IN_A_NAME.sub("_", part) for part in parts)
    return name[: MAX_NAME_LENGTH - len(suffix)] + suffix


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "+".join(f"{key}={_short(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "+".join(_short(item) for item in value)
    return str(value)


def sample_seed(seed: int, sample: int) -> int:
    """Return the seed of an experiment's nth sample: its own seed for sample 0, derived ones after it."""
    return seed if sample == 0 else derive_seed(seed, "sample", sample)
