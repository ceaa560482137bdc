"""The protocol of a recorder: something that keeps the result rows of one trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Recorder(Protocol):
    """Keeps rows where another program can read each one as soon as ``record`` has returned."""

    def record(self, row: Mapping[str, Any]) -> None:
        """Write one result row: flat but for the dict ``info``; a None or NaN is a value that is not there yet."""

    def close(self) -> None:
        """Finish the file; a second call does nothing."""
