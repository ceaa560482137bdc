"""``rlexp.results``; importing this loads nothing but Python's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlexp.run_results.table import Results


def results(*paths: str | Path) -> Results:
    """Return the results of runs or trials as a table: one row for each iteration of each trial.

    Args:
        paths: directories of runs or trials; also of runs that have not ended.

    Raises:
        UsageError: where there is no run or trial.

    """
    from rlexp.run_results.table import read_results

    return read_results([Path(path) for path in paths])
