"""A file of lines, one for each iteration: goes on after a kill, and takes back what a restarted trial does again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path


class LineFile:
    """Owns a file of lines of which each, but for a header, has the number of an iteration; numbers only grow.

    What is there is gone on with: a last line without an end, which a kill interrupted, is cut off. A line whose
    number is not higher than the last takes back those from that number on: the trial began again before them.
    """

    def __init__(self, path: Path, number_of: Callable[[str], int | None]) -> None:
        """Read what ``path`` has; ``number_of`` tells a line's number, None for the header."""
        self._numbers: list[int] = []
        self._starts: list[int] = []
        self._end = 0
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        self._note(number_of(line.decode("utf-8")), len(line))
        self._file = path.open("a+b")
        self._file.truncate(self._end)

    @property
    def last(self) -> int:
        """The number of its last line, 0 where it has none."""
        return self._numbers[-1] if self._numbers else 0

    def write(self, number: int | None, line: str) -> None:
        """Append a line; another program can read it as soon as this has returned."""
        if number is not None and self._numbers and number <= self._numbers[-1]:
            self._take_back(number)
        data = line.encode("utf-8")
        self._file.write(data)
        self._file.flush()
        self._note(number, len(data))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _note(self, number: int | None, size: int) -> None:
        if number is not None:
            self._numbers.append(number)
            self._starts.append(self._end)
        self._end += size

    def _take_back(self, number: int) -> None:
        index = bisect_left(self._numbers, number)
        self._end = self._starts[index]
        self._file.truncate(self._end)
        del self._numbers[index:], self._starts[index:]
