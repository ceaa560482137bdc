"""What the forms have in common in which ``rlexp logs`` prints event files."""

from __future__ import annotations

from typing import Protocol, TypeVar

from rlexp.results.event_files import Gatherer, Run, RunContents
from rlexp.sample_batch import Array

Kept = TypeVar("Kept", bound=Gatherer)


class LogPrinter(Protocol[Kept]):
    """Decides what of a tag's points is kept while they are read, and prints it."""

    shows_others: bool
    """Whether it prints the tags that are no scalars."""

    def keep(self) -> Kept:
        """Return what gathers the points of one tag."""

    def print_run(self, contents: RunContents[Kept]) -> None:
        """Print what the files of a run say."""

    def print_news(self, run: Run, tag: str, points: Array) -> None:
        """Print points ``[N]`` of POINT that were written since the last look."""
