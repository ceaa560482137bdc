"""Checks the state of a checkpoint before an agent continues from it: the file or the experiment may have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from rlexp.checkpoint import Checkpoint, Manifest, read_state
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_modules import NO_MODULES
from rlexp.envs import EnvConfig
from rlexp.errors import CheckpointError
from rlexp.files import plain
from rlexp.policy import Learner
from rlexp.runs.last_row import checkpoint_row
from rlexp.seeding import derive_seed

_COUNTERS: Final = ("iteration", "num_steps_sampled", "num_steps_trained", "episodes_total")
_MOST: Final = 2**53
"""Above this, adding 1 to a count may not change it: an iteration would never end."""
_HINT: Final = "it was changed after it was written; use an earlier checkpoint of the trial"
_LEARNER_HINT: Final = "restore one of the same algorithm, env and model; or it was changed after it was written"
_LONGEST_CAUSE: Final = 300


def check_counters(path: Path, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError where what the state of the checkpoint at ``path`` counts is not a count or a time."""
    for name in _COUNTERS:
        value = state.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
            raise CheckpointError(f"checkpoint {path}: {name} in its state is not a count", _HINT)
    seconds = state.get("time_total_s")
    if not isinstance(seconds, int | float) or not 0 <= seconds < _MOST:
        raise CheckpointError(f"checkpoint {path}: time_total_s in its state is not a time", _HINT)


def refuse_unloadable(newest: tuple[Path, Manifest] | None) -> None:
    """Raise CheckpointError where a trial could not start from its newest checkpoint, which was verified."""
    if newest is not None:
        path, manifest = newest
        check_counters(path, read_state(path))
        checkpoint_row(path, manifest.metadata)


def resumed_seed(seed: int, checkpoint: Checkpoint) -> int:
    """Return the seed of the random streams that start anew after ``checkpoint``; checks its counters."""
    check_counters(checkpoint.path, checkpoint.state)
    return derive_seed(seed, "resumed", checkpoint.state["num_steps_sampled"])


def load_learner(learner: Learner, checkpoint: Checkpoint) -> None:
    """Let ``learner`` continue from ``checkpoint``; raises CheckpointError where that holds no state of it."""
    checkpoint.check_numbers("learner")
    with errors_of(checkpoint.path, _LEARNER_HINT):
        learner.load_state_dict(checkpoint.arrays["learner"])


@contextmanager
def errors_of(path: Path, hint: str = _HINT) -> Iterator[None]:
    """Turn what a state of another form raises in the body, where it is loaded, into a CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        what = shorten(f"{type(error).__name__}: {error}", _LONGEST_CAUSE)  # torch's have a line for each weight
        raise CheckpointError(f"checkpoint {path} does not hold the state of this agent ({what})", hint) from error


def rollout_fingerprint(env_config: EnvConfig, config: CommonConfig, has_board: bool = False) -> dict[str, Any]:
    """Return the env and the keys by which workers play, as JSON has them."""
    # Where it is imported from, and how many threads step it, changes nothing in an env.
    env = asdict(replace(env_config, modules=NO_MODULES, num_threads=1))
    del env["actions"]  # which actions can be played does not change how they are
    for part in ("wrappers", "preprocessor"):
        if not env[part]:
            del env[part]  # checkpoints without them stay as they are
    keys = config.model_dump(mode="json", include=set(config.ROLLOUT_KEYS)) | {
        "sample_batch_size": config.fragment_length
    }
    board = (
        {"board": True} if has_board else {}
    )  # its source has another state; checkpoints without one stay as they are
    fingerprint: dict[str, Any] = plain({"env": env, "config": keys, **board})
    return fingerprint
