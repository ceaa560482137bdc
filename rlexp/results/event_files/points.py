"""Points of scalars on their way from the records of a file to the curves of its tags."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rlexp.sample_batch import Array

POINT: Final = np.dtype([("tag", "<i8"), ("record", "<i8"), ("step", "<i8"), ("wall_time", "<f8"), ("value", "<f8")])
"""``tag`` is the number of a tag, ``record`` that of the record it came from, ``wall_time`` seconds since 1970."""

MOST_TAGS: Final = 100_000
"""A file that makes up a tag for every record must not fill the memory: further tags are left out, and that is said."""


@dataclass(frozen=True)
class Batch:
    """What some successive records of a file say."""

    points: dict[str, Array]
    """The scalars by tag: ``[N]`` of POINT, in the order in which they were written."""
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many values that are no scalars there are, by tag and kind."""
    restarts: list[tuple[int, int]] = field(default_factory=list)
    """Record and step of every announcement that a writer goes on from there, and takes back what lies beyond."""
    damaged: list[int] = field(default_factory=list)
    """Records that were left out, because their checksum denies their data or it is no message."""


class TagNumbers:
    """Small numbers for the tags of a file, so that a column of tags is an array."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.left_out = False
        """Whether a tag came too late to have a number."""
        self._numbers: dict[bytes, int] = {}

    def number(self, tag: bytes) -> int:
        """Return the number of ``tag``, -1 where there are too many already."""
        number = self._numbers.get(tag)
        if number is None:
            if len(self.names) >= MOST_TAGS:
                self.left_out = True
                return -1
            number = self._numbers[tag] = len(self.names)
            self.names.append(tag.decode(errors="backslashreplace"))
        return number


def by_tag(pieces: list[Array], names: list[str]) -> dict[str, Array]:
    """Return the points in ``pieces``, which are in any order, by the name of their tag and in the order written."""
    if not pieces:
        return {}
    points = np.concatenate(pieces)
    order = np.argsort(points["record"], kind="stable")
    narrow = np.int16 if len(names) < 1 << 15 else np.int64  # numpy sorts 16 bits in linear time
    order = order[np.argsort(points["tag"][order].astype(narrow), kind="stable")]
    points = points[order]
    points = points[np.searchsorted(points["tag"], 0) :]  # those without a number are first
    present, first = np.unique(points["tag"], return_index=True)
    ends = [*first[1:].tolist(), len(points)]
    return {
        names[tag]: points[start:end] for tag, start, end in zip(present.tolist(), first.tolist(), ends, strict=True)
    }
