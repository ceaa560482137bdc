"""What a trainer puts on the board for its actors: weights, moments of a filter, and the clock of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.joined_actors.weight_precision import widened
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.transport.columns import pack_arrays, unpack_arrays
from rlexp.transport.credentials import ActorKeys, TrainerKeys, weights_statement
from rlexp.transport.envelope import Header, InvalidMessageError, read_message, seal

_MEAN: Final = ":mean"
_SQUARES: Final = ":squares"
_BLOB_BYTES: Final = 1 << 40
"""A blob is one message, however long it is: boards cut it into chunks themselves."""

Shapes = Mapping[str, tuple[int, ...]]
"""Of all parameters of a network, by name."""


@dataclass(frozen=True)
class Newer:
    """What an actor acts with from its next fragment on."""

    version: int
    """Learner updates behind the weights."""
    weights: Weights
    moments: Moments | None
    """By which observations are standardised; None: the filter stays as it is, if there is one."""
    num_steps_sampled: int
    """Env steps of all players together, when they were published."""
    epoch: int = -1
    """Of the trainer that published them; -1 before they are."""


def blob_name(version: int) -> str:
    """Return the name that the weights of ``version`` have on a board."""
    return f"weights-{version}"


def seal_weights(task_id: str, epoch: int, newer: Newer, keys: TrainerKeys) -> bytes:
    """Return the blob of ``newer`` as the trainer of ``epoch`` puts it: a message, and with tokens its signature."""
    arrays = {name: np.asarray(array) for name, array in newer.weights.items()}
    info = {"steps": newer.num_steps_sampled}
    if newer.moments is not None:
        arrays |= {_MEAN: newer.moments.mean, _SQUARES: newer.moments.squares}
        info["moments"] = newer.moments.count
    columns, raw = pack_arrays(arrays)
    header = Header(task_id, -1, epoch, newer.version, newer.version, columns, info)
    (message,) = seal(header, raw, keys.published_key, _BLOB_BYTES)
    return message + keys.sign(weights_statement(task_id, epoch, newer.version, message))


def open_weights(blob: bytes, task_id: str, version: int, keys: ActorKeys, max_bytes: int) -> Newer:
    """Return what :func:`seal_weights` was given, with the trainer's epoch; raises InvalidMessageError for all else."""
    end = len(blob) - keys.num_signature_bytes
    message = read_message(blob[:end], keys.published_key, max_bytes)
    header = message.header
    if not keys.accepts(weights_statement(task_id, header.epoch, version, blob[:end]), blob[end:]):
        raise InvalidMessageError("the weights are not signed by the trainer of this actor's token")
    if (header.task_id, header.seat, header.number, header.num_parts) != (task_id, -1, version, 1):
        raise InvalidMessageError("weights of another task or version")
    arrays = unpack_arrays(message)
    mean, squares = arrays.pop(_MEAN, None), arrays.pop(_SQUARES, None)
    steps, count = header.info.get("steps"), header.info.get("moments", 0)
    if type(steps) is not int or type(count) is not int or min(steps, count) < 0:
        raise InvalidMessageError("the weights come without a clock")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise InvalidMessageError("weights that are not finite")
    moments = None if mean is None or squares is None else Moments(count, mean, squares)
    return Newer(version, widened(arrays), moments, steps, header.epoch)


def check_form(weights: Weights, shapes: Shapes) -> None:
    """Raise InvalidMessageError unless ``weights`` are floating-point numbers for a network of ``shapes``."""
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise InvalidMessageError("weights of another network")
    if any(array.dtype.kind != "f" or array.dtype.itemsize > np.float32().itemsize for array in weights.values()):
        raise InvalidMessageError("weights of another dtype")
