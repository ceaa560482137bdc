"""The content of a task's messages: fragments from actors, and weights that its trainer puts on the board.

A fragment has rows and the report about them. Weights come with the moments of a filter and the clock of schedules.
They are in float16 if the trial says so and their values allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

import numpy as np

from rlexp.board.messages.basics import InvalidMessageError
from rlexp.board.messages.credentials import ActorKeys, TrainerKeys, weights_statement
from rlexp.board.messages.envelope import (
    Header,
    Message,
    arrays_of,
    pack_arrays,
    read_message,
    rows_of,
    seal,
    unpack_arrays,
)
from rlexp.policy import Weights
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.sample_batch import Array, FrameRows, SampleBatch

TRAINER: Final = "trainer"
"""The epoch of the trainer whose weights acted, in the header of a fragment."""
_RETURNS: Final = ":returns"
_LENGTHS: Final = ":lengths"
_REPORTED: Final = ":reported"
_MEAN: Final = ":observed_mean"
_SQUARES: Final = ":observed_squares"
_REPORT: Final = {_RETURNS: "float64", _LENGTHS: "int64", _REPORTED: "bool"}
_MOMENTS: Final = (_MEAN, _SQUARES)
_MOST_STEPS: Final = 1 << 40
FLOAT16: Final = "float16"
_LARGEST: Final = float(np.finfo(np.float16).max)
_FILTER_MEAN: Final = ":mean"
_FILTER_SQUARES: Final = ":squares"
_BLOB_BYTES: Final = 1 << 40
"""Limit of a blob, which is one message of any length: boards split it into chunks."""
Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of all parameters of a network, by name."""


def seal_fragment(
    header: Header, rows: SampleBatch | FrameRows, info: SampleInfo, key: bytes, max_bytes: int
) -> list[bytes]:
    """Return the messages of a fragment; ``header`` has its origin, its number and further information."""
    episodes, observed = info.episodes, info.observed
    values = (episodes.returns, episodes.lengths, episodes.reported)
    arrays: dict[str, Array] = {
        name: np.asarray(value, dtype) for (name, dtype), value in zip(_REPORT.items(), values, strict=True)
    }
    report = {**header.info, "env_steps": info.num_env_steps, "time": astuple(info.time)}
    if observed is not None:
        arrays |= {_MEAN: observed.mean, _SQUARES: observed.squares}
        report["observed"] = observed.count
    columns, raw = pack_arrays({**arrays_of(rows), **arrays})
    filled = replace(header, weights_version=info.weights_version, columns=columns, info=report)
    return seal(filled, raw, key, max_bytes)


def open_fragment(message: Message, worker_index: int) -> tuple[SampleBatch | FrameRows, SampleInfo]:
    """Return the rows of a whole message, read-only, and the report, as from worker ``worker_index``.

    Raises InvalidMessageError if :func:`seal_fragment` could not have made them.
    """
    arrays = unpack_arrays(message)
    report = {name: arrays.pop(name, None) for name in (*_REPORT, *_MOMENTS)}
    rows = rows_of(arrays)
    info = message.header.info
    return rows, SampleInfo(
        worker_index=worker_index,
        num_rows=rows.count,
        num_env_steps=_count(info.get("env_steps")),
        episodes=_episodes(report),
        weights_version=message.header.weights_version,
        time=_time(info.get("time")),
        observed=_moments(info.get("observed"), report[_MEAN], report[_SQUARES]),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_STEPS:
        raise InvalidMessageError(f"the number of env steps must be a whole number from 0 to {_MOST_STEPS}")
    return value


def _time(value: Any) -> SampleTime:
    numbers = value if isinstance(value, list) else []
    if len(numbers) != 4 or not all(isinstance(number, int | float) and 0 <= number < 1e9 for number in numbers):
        raise InvalidMessageError("the times must be four numbers of seconds from 0 on")
    return SampleTime(*(float(number) for number in numbers))


def _episodes(report: Mapping[str, Array | None]) -> Episodes:
    returns, lengths, reported = (report[name] for name in _REPORT)
    if returns is None or lengths is None or reported is None:
        raise InvalidMessageError("the episodes are missing")
    if [str(array.dtype) for array in (returns, lengths, reported)] != [*_REPORT.values()]:
        raise InvalidMessageError("the episodes have wrong dtypes")
    if returns.ndim != 1 or not returns.shape == lengths.shape == reported.shape:
        raise InvalidMessageError("the episodes have different numbers")
    if not np.isfinite(returns).all() or (lengths < 1).any():
        raise InvalidMessageError("an episode has no return or no length")
    return Episodes(returns, lengths, reported)


def _moments(count: Any, mean: Array | None, squares: Array | None) -> Moments | None:
    if count is None and mean is None and squares is None:
        return None
    if mean is None or squares is None or mean.shape != squares.shape or not mean.dtype == squares.dtype == np.float64:
        raise InvalidMessageError("the moments are incomplete")
    if not (np.isfinite(mean).all() and np.isfinite(squares).all() and (squares >= 0).all()):
        raise InvalidMessageError("the moments are not finite")
    return Moments(_count(count), mean, squares)


@dataclass(frozen=True)
class Newer:
    """The weights with which an actor acts from its next fragment on."""

    version: int
    """Number of learner updates that the weights include."""
    weights: Weights
    moments: Moments | None
    """Moments that standardise observations; None: the filter, if any, does not change."""
    num_steps_sampled: int
    """Env steps of all players together, when the weights were published."""
    epoch: int = -1
    """Epoch of the trainer that published them; -1 before that."""


def blob_name(version: int) -> str:
    """Return the name of the weights of ``version`` on a board."""
    return f"weights-{version}"


def seal_weights(task_id: str, epoch: int, newer: Newer, keys: TrainerKeys) -> bytes:
    """Return the blob of ``newer`` for the trainer of ``epoch``: a message, and with tokens its signature."""
    arrays = {name: np.asarray(array) for name, array in newer.weights.items()}
    info = {"steps": newer.num_steps_sampled}
    if newer.moments is not None:
        arrays |= {_FILTER_MEAN: newer.moments.mean, _FILTER_SQUARES: newer.moments.squares}
        info["moments"] = newer.moments.count
    columns, raw = pack_arrays(arrays)
    header = Header(task_id, -1, epoch, newer.version, newer.version, columns, info)
    (message,) = seal(header, raw, keys.published_key, _BLOB_BYTES)
    return message + keys.sign(weights_statement(task_id, epoch, newer.version, message))


def open_weights(blob: bytes, task_id: str, version: int, keys: ActorKeys, max_bytes: int) -> Newer:
    """Return what :func:`seal_weights` was given, and the trainer's epoch; raises InvalidMessageError for all else."""
    end = len(blob) - keys.num_signature_bytes
    message = read_message(blob[:end], keys.published_key, max_bytes)
    header = message.header
    if not keys.accepts(weights_statement(task_id, header.epoch, version, blob[:end]), blob[end:]):
        raise InvalidMessageError("the weights are not signed by the trainer of this actor's token")
    if (header.task_id, header.seat, header.number, header.num_parts) != (task_id, -1, version, 1):
        raise InvalidMessageError("weights of another task or version")
    arrays = unpack_arrays(message)
    moments = _moments(header.info.get("moments"), arrays.pop(_FILTER_MEAN, None), arrays.pop(_FILTER_SQUARES, None))
    steps = header.info.get("steps")
    if type(steps) is not int or steps < 0:
        raise InvalidMessageError("the weights come without a clock")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise InvalidMessageError("weights that are not finite")
    return Newer(version, widened(arrays), moments, steps, header.epoch)


def check_form(weights: Weights, shapes: Shapes) -> None:
    """Raise InvalidMessageError unless ``weights`` are floating-point numbers for a network of ``shapes``."""
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise InvalidMessageError("weights of another network")
    if any(array.dtype.kind != "f" or array.dtype.itemsize > np.float32().itemsize for array in weights.values()):
        raise InvalidMessageError("weights of another dtype")


def widened(weights: Weights) -> Weights:
    """Return received weights in the dtype of networks: float16 becomes float32."""
    return {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in weights.items()}


class WeightPrecision:
    """Rounds weights before they are published; owned by the source of joined actors."""

    def __init__(self, dtype: str) -> None:
        """Initialise; float32 arrays become ``dtype``: ``float32`` or ``float16``."""
        self.dtype = dtype
        self._kept: set[str] = set()
        self._events: list[str] = []

    def rounded(self, weights: Weights) -> Weights:
        """Return rounded ``weights``. An array with a value beyond float16 stays float32: none becomes infinite."""
        if self.dtype != FLOAT16:
            return weights
        return {name: self._rounded(name, np.asarray(array)) for name, array in weights.items()}

    def drain_events(self) -> list[str]:
        """Return which arrays stayed float32 since the last call; each is named once."""
        events, self._events = self._events, []
        return events

    def _rounded(self, name: str, array: np.ndarray) -> np.ndarray:
        if array.dtype != np.float32:
            return array
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float16)
        if np.isfinite(rounded).all():
            return rounded
        if name not in self._kept:
            self._kept.add(name)
            why = f"it has values beyond {_LARGEST:,.0f}, the largest of float16"
            self._events.append(f"weights {name} are sent to joined actors as float32: {why}")
        return array
