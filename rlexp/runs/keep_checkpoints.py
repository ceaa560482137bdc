"""Which checkpoints of a trial are kept: the best ones, and the newest."""

from __future__ import annotations

import math
from pathlib import Path

from rlexp.checkpoint import list_checkpoints, remove_checkpoint, verify_checkpoint
from rlexp.errors import CheckpointError
from rlexp.runs.recorders import flatten

LOWER_IS_BETTER = "min-"


def keep_best(trial_directory: Path, count: int, score_attribute: str) -> None:
    """Delete all but the ``count`` best checkpoints by a metric of theirs (``min-x``: the lower the better).

    The newest is never deleted: a trial that is started again goes on from it.
    """
    newest, *older = list_checkpoints(trial_directory)
    ranked = sorted([newest, *older], key=lambda path: _score(path, score_attribute), reverse=True)
    for path in ranked[count:]:
        if path != newest:
            remove_checkpoint(path)


def _score(checkpoint: Path, attribute: str) -> float:
    """Return a number that is higher the better the checkpoint; one without the metric, or damaged, is the worst."""
    name = attribute.removeprefix(LOWER_IS_BETTER)
    try:
        metrics = verify_checkpoint(checkpoint).metadata.get("metrics")
        value = float(flatten(metrics if isinstance(metrics, dict) else {}).get(name, math.nan))
    except (CheckpointError, TypeError, ValueError, OverflowError):
        return -math.inf
    if math.isnan(value):
        return -math.inf
    return -value if attribute.startswith(LOWER_IS_BETTER) else value
