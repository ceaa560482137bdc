"""What a joined actor sends: the rows of a fragment and the report about it, as the messages of one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Final

import numpy as np

from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.sample_batch import Array, FrameRows, SampleBatch
from rlexp.transport.columns import pack_arrays, pack_rows, rows_of, unpack_arrays
from rlexp.transport.envelope import Header, InvalidMessageError, Message, seal

_RETURNS: Final = ":returns"
_LENGTHS: Final = ":lengths"
_REPORTED: Final = ":reported"
_MEAN: Final = ":observed_mean"
_SQUARES: Final = ":observed_squares"
_REPORT: Final = {_RETURNS: "float64", _LENGTHS: "int64", _REPORTED: "bool"}
_MOMENTS: Final = (_MEAN, _SQUARES)
_MOST_STEPS: Final = 1 << 40


def seal_fragment(
    header: Header, rows: SampleBatch | FrameRows, info: SampleInfo, key: bytes, max_bytes: int
) -> list[bytes]:
    """Return the messages of a fragment; ``header`` says where it comes from, and its number."""
    columns, raw = pack_rows(rows)
    more_columns, more_raw = pack_arrays(_report_arrays(info))
    filled = Header(
        task_id=header.task_id,
        seat=header.seat,
        epoch=header.epoch,
        number=header.number,
        weights_version=info.weights_version,
        columns=(*columns, *more_columns),
        info=_report(info),
        actor=header.actor,
    )
    return seal(filled, raw + more_raw, key, max_bytes)


def open_fragment(message: Message, worker_index: int) -> tuple[SampleBatch | FrameRows, SampleInfo]:
    """Return the rows of a whole message, read-only, and the report, as that of ``worker_index``.

    Raises InvalidMessageError where they have another form than :func:`seal_fragment` gives them.
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


def _report(info: SampleInfo) -> dict[str, Any]:
    report: dict[str, Any] = {"env_steps": info.num_env_steps, "time": astuple(info.time)}
    return report if info.observed is None else report | {"observed": info.observed.count}


def _report_arrays(info: SampleInfo) -> dict[str, Array]:
    episodes = info.episodes
    values = (episodes.returns, episodes.lengths, episodes.reported)
    arrays: dict[str, Array] = {
        name: np.asarray(value, dtype) for (name, dtype), value in zip(_REPORT.items(), values, strict=True)
    }
    if info.observed is not None:
        arrays |= {_MEAN: info.observed.mean, _SQUARES: info.observed.squares}
    return arrays


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_STEPS:
        raise InvalidMessageError("the number of env steps is none")
    return value


def _time(value: Any) -> SampleTime:
    numbers = value if isinstance(value, list) else []
    if len(numbers) != 4 or not all(isinstance(number, int | float) and 0 <= number < 1e9 for number in numbers):
        raise InvalidMessageError("the times are none")
    return SampleTime(*(float(number) for number in numbers))


def _episodes(report: Mapping[str, Array | None]) -> Episodes:
    arrays = [report[name] for name in _REPORT]
    returns, lengths, reported = arrays
    if returns is None or lengths is None or reported is None:
        raise InvalidMessageError("the episodes are missing")
    if any(array.dtype != dtype for array, dtype in zip((returns, lengths, reported), _REPORT.values(), strict=True)):
        raise InvalidMessageError("the episodes have wrong dtypes")
    if returns.ndim != 1 or not returns.shape == lengths.shape == reported.shape:
        raise InvalidMessageError("the episodes have different numbers")
    if not np.isfinite(returns).all() or (lengths < 1).any():
        raise InvalidMessageError("an episode has no return or no length")
    return Episodes(returns, lengths, reported)


def _moments(count: Any, mean: Array | None, squares: Array | None) -> Moments | None:
    if count is None and mean is None and squares is None:
        return None
    if (
        mean is None
        or squares is None
        or mean.shape != squares.shape
        or {mean.dtype, squares.dtype} != {np.dtype("f8")}
    ):
        raise InvalidMessageError("the moments are incomplete")
    if not (np.isfinite(mean).all() and np.isfinite(squares).all() and (squares >= 0).all()):
        raise InvalidMessageError("the moments are not finite")
    return Moments(_count(count), mean, squares)
