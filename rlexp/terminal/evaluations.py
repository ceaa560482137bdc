"""Evaluations: how a checkpoint did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlexp.terminal.paint import visible

if TYPE_CHECKING:  # the agents import torch, which most commands do without
    from rlexp.agents.evaluation import Evaluation


def print_evaluation(evaluation: Evaluation, video: Path | None, as_json: bool) -> None:
    """Print how a checkpoint did, and which video shows it, to stdout."""
    if as_json:
        print(json.dumps({**_evaluation_as_json(evaluation), "video": None if video is None else str(video)}))
        return
    returns, lengths = evaluation.returns, evaluation.lengths
    low, high = evaluation.interval
    print(visible(f"{evaluation.run} on {evaluation.env}, {evaluation.checkpoint}"))
    print(f"episodes  {len(returns)}")
    print(f"return    mean {returns.mean():.2f} (95 % interval {low:.2f} to {high:.2f}), deviation {returns.std():.2f}")
    print(f"          min {returns.min():.2f}, max {returns.max():.2f}")
    print(f"length    mean {lengths.mean():.1f}, min {lengths.min()}, max {lengths.max()}")
    if video is not None:
        print(f"video     {video}")


def _evaluation_as_json(evaluation: Evaluation) -> dict[str, Any]:
    returns = evaluation.returns
    return {
        "checkpoint": str(evaluation.checkpoint),
        "run": evaluation.run,
        "env": evaluation.env,
        "training_iteration": evaluation.iteration,
        "episodes": len(returns),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_interval_95": list(evaluation.interval),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(evaluation.lengths.mean()),
        "returns": returns.tolist(),
        "lengths": evaluation.lengths.tolist(),
    }
