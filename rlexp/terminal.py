"""What commands print, apart from the displays of a run: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rlexp.config.experiment import required_cpus, required_gpus
from rlexp.config.load import Plan
from rlexp.config.trial import Trial
from rlexp.errors import RlexpError

if TYPE_CHECKING:  # the agents import torch, which most commands do without
    from rlexp.agents.evaluation import Evaluation

RED, YELLOW, CYAN = "31", "33", "36"


def print_notices(plan: Plan) -> None:
    """Print a plan's notices to stderr, a line each."""
    for notice in plan.notices:
        print(f"{_painted('notice:', YELLOW, sys.stderr)} {notice.where}  {notice.message}", file=sys.stderr)


def print_plan(plan: Plan) -> None:
    """Print a line for each of a plan's trials to stdout."""
    rows = [_table_row(trial) for trial in plan.trials]
    for line in _aligned([("trial", "agent", "env", "CPUs", "varied", "stop"), *rows]):
        print(line)


def plan_as_json(plan: Plan | None, error: RlexpError | None) -> dict[str, Any]:
    """Return what ``--json`` prints: ``notices``, ``trials`` and ``problems``, each a list."""
    return {
        "notices": [vars(notice) for notice in plan.notices] if plan else [],
        "trials": [_trial_as_json(trial) for trial in plan.trials] if plan else [],
        "problems": [vars(problem) for problem in error.problems] if error else [],
    }


def print_error(error: RlexpError) -> None:
    """Print everything that is wrong to stderr: an ``error:`` line each, with a ``hint:`` line where there is one."""
    for problem in error.problems:
        where = f"{problem.where}  " if problem.where else ""
        print(f"{_painted('error:', RED, sys.stderr)} {where}{problem.message}", file=sys.stderr)
        if problem.hint:
            print(f"{_painted('hint:', CYAN, sys.stderr)}  {problem.hint}", file=sys.stderr)


def print_evaluation(evaluation: Evaluation, as_json: bool) -> None:
    """Print how a checkpoint did, to stdout."""
    if as_json:
        print(json.dumps(_evaluation_as_json(evaluation)))
        return
    returns, lengths = evaluation.returns, evaluation.lengths
    low, high = evaluation.interval
    print(f"{evaluation.run} on {evaluation.env}, {evaluation.checkpoint}")
    print(f"episodes  {len(returns)}")
    print(f"return    mean {returns.mean():.2f} (95 % interval {low:.2f} to {high:.2f}), deviation {returns.std():.2f}")
    print(f"          min {returns.min():.2f}, max {returns.max():.2f}")
    print(f"length    mean {lengths.mean():.1f}, min {lengths.min()}, max {lengths.max()}")


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


def _trial_as_json(trial: Trial) -> dict[str, Any]:
    experiment = trial.experiment
    return {
        "index": trial.index,
        "name": trial.name,
        "experiment": experiment.name,
        "run": experiment.run,
        "env": experiment.env,
        "varied": trial.varied,
        "sample": trial.sample,
        "seed": experiment.config.seed,
        "stop": experiment.stop,
        "cpus": required_cpus(experiment),
        "gpus": required_gpus(experiment),
    }


def _table_row(trial: Trial) -> tuple[str, ...]:
    experiment = trial.experiment
    varied = ", ".join(f"{key}={value}" for key, value in trial.varied.items())
    stop = ", ".join(f"{metric} {number}" for metric, number in experiment.stop.items())
    cpus = f"{required_cpus(experiment):g}"
    return trial.name, experiment.run, experiment.env, cpus, varied or "-", stop or "-"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows as lines, their columns below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _painted(text: str, colour: str, stream: TextIO) -> str:
    """Return text in a colour where the stream is a terminal and NO_COLOR is not set."""
    return f"\x1b[{colour}m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text
