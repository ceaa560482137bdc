"""What ``rlexp evaluate`` prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from rlexp.terminal.lines import visible

if TYPE_CHECKING:  # the agents import torch, which most commands do without
    from rlexp.agents.checkpoint import Evaluation

_CLEAR_LINE: Final = "\r\x1b[K"


class EvaluationProgress:
    """Shows on a terminal how far an evaluation is, on one line that is gone at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_shown = False

    def __enter__(self) -> EvaluationProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()

    def report(self, num_ended: int, num_env_steps: int) -> None:
        """Show it."""
        if self._stream.isatty():
            self._is_shown = True
            self._stream.write(f"{_CLEAR_LINE}{num_ended} episodes ended, {num_env_steps:,} env steps")
            self._stream.flush()


def print_evaluation(evaluation: Evaluation, video: Path | None, as_json: bool) -> None:
    """Print the returns and lengths of an evaluation, and its video, to stdout."""
    if as_json:
        print(json.dumps({**_evaluation_as_json(evaluation), "video": None if video is None else str(video)}))
        return
    played = evaluation.played
    returns, lengths = played.returns, played.lengths
    low, high = evaluation.interval
    explores = _exploration(evaluation)
    print(visible(f"{evaluation.run} on {evaluation.env}, {evaluation.checkpoint}"))
    print(f"episodes  {len(returns)}, {explores}")
    print(f"return    mean {returns.mean():.2f} (95 % interval {low:.2f} to {high:.2f})")
    print(f"          min {returns.min():.2f}, max {returns.max():.2f}, standard deviation {returns.std():.2f}")
    print(f"length    mean {lengths.mean():.1f}, min {lengths.min()}, max {lengths.max()}")
    if video is not None:
        print(f"video     {video}")
    if not played.is_complete:
        print(f"only {played}", file=sys.stderr)


def _exploration(evaluation: Evaluation) -> str:
    if not evaluation.explores:
        return "greedy"
    figures = " and ".join(f"{name} {value:g}" for name, value in evaluation.exploration.items())
    return f"exploring with {figures}" if figures else "exploring"


def _evaluation_as_json(evaluation: Evaluation) -> dict[str, Any]:
    played = evaluation.played
    returns, lengths = played.returns, played.lengths
    return {
        "checkpoint": str(evaluation.checkpoint),
        "run": evaluation.run,
        "env": evaluation.env,
        "training_iteration": evaluation.iteration,
        "explores": evaluation.explores,
        **{name: value if evaluation.explores else None for name, value in evaluation.exploration.items()},
        "episodes": len(returns),
        "episodes_wanted": played.num_wanted,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_interval_95": list(evaluation.interval),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
    }
