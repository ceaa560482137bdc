"""The output of commands that read runs: ``ls``, ``prune``, ``tensorboard``, ``evaluate`` and ``export``."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from rlexp.compare.run_listing import DAMAGED, KILLED, Found
from rlexp.errors import Notice
from rlexp.files import to_json
from rlexp.runs.record import Status
from rlexp.terminal.lines import (
    GREEN,
    RED,
    YELLOW,
    StatusLine,
    Table,
    print_notice_list,
    tolerate_unknown_letters,
    visible,
)
from rlexp.text import MISSING, count, middle_cut, one_line, score, size

if TYPE_CHECKING:
    from rlexp.agents.checkpoint import Evaluation
    from rlexp.agents.export.export import Export
    from rlexp.agents.export.onnx import Verification
    from rlexp.runs.kept_checkpoints import Superseded

_LONGEST_NAMES: Final = 24
_FOUND: Final = Table(
    columns=("run", "status", "agent", "env", "best", "last", "steps", "iter", "age", "size"),
    by_need=("run", "status", "best", "steps", "age", "size", "env", "agent", "last", "iter"),
    numbers=frozenset({"best", "last", "steps", "iter", "age", "size"}),
    colours={Status.RUNNING: GREEN, Status.ERROR: RED, DAMAGED: RED, KILLED: YELLOW},
    least=2,
    decent_name=20,
)
_AGES: Final = ((365 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_found(found: Sequence[Found], path: Path, as_json: bool) -> None:
    """Print the runs found at ``path`` to stdout: a table, or one JSON object; if there are none, say so on stderr."""
    if as_json:
        print(to_json({"runs": [_as_json(each) for each in found]}))
    elif not found:
        print(f"no runs in {path}", file=sys.stderr)
    else:
        _print_table(found, path, datetime.now().astimezone())


def print_pruned(pruned: Sequence[Superseded], is_dry: bool, as_json: bool) -> None:
    """Print the removed checkpoints to stdout, or with ``is_dry`` those to remove: a line for each run, or JSON."""
    if as_json:
        runs = [
            {"run": str(each.run), "checkpoints": list(map(str, each.checkpoints)), "bytes": each.num_bytes}
            for each in pruned
        ]
        print(to_json({"runs": runs, "removed": not is_dry}))
        return
    for each in pruned:
        number = f"{len(each.checkpoints)} of {each.num_checkpoints} checkpoints"
        verb = "would remove" if is_dry else "removed"
        print(f"{one_line(str(each.run))}: {verb} {number}, {size(each.num_bytes)}")


def print_address(url: str) -> None:
    """Print TensorBoard's address to stdout: a sentence on a terminal, elsewhere the address alone."""
    print(f"TensorBoard runs at {url}; Ctrl-C stops it" if sys.stdout.isatty() else url, flush=True)


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "status": found.status,
        "problem": found.problem,
        "agents": found.agents,
        "envs": found.envs,
        "trials": found.num_trials,
        "best": found.best,
        "last": found.last,
        "steps": found.steps,
        "iterations": found.iterations,
        "started": found.started.isoformat() if found.started else None,
        "size_bytes": found.size_bytes if found.is_whole_size else None,
    }


def _print_table(found: Sequence[Found], path: Path, now: datetime) -> None:
    tolerate_unknown_letters(sys.stdout)
    rows = [_cells(each, path, now) for each in found]
    print(*_FOUND.lines(rows, sys.stdout), sep="\n")
    for each, row in zip(found, rows, strict=True):
        if each.problem is not None:
            print(f"{row['run']}: {one_line(each.problem)}")


def _cells(found: Found, path: Path, now: datetime) -> dict[str, str]:
    name = found.path.relative_to(path) if found.path != path else Path(found.path.resolve().name)
    trials = f" ({found.num_trials} trials)" if found.num_trials > 1 else ""
    return {
        "run": one_line(f"{name}{trials}"),
        "status": found.status,
        "agent": middle_cut(one_line("+".join(found.agents)), _LONGEST_NAMES) or MISSING,
        "env": middle_cut(one_line("+".join(found.envs)), _LONGEST_NAMES) or MISSING,
        "best": score(found.best),
        "last": score(found.last),
        "steps": count(found.steps),
        "iter": count(found.iterations),
        "age": _age(found.started, now),
        "size": ("" if found.is_whole_size else ">") + size(found.size_bytes),
    }


def _age(started: datetime | None, now: datetime) -> str:
    if started is None:
        return MISSING
    seconds = max((now - started).total_seconds(), 0.0)
    span, unit = next(((span, unit) for span, unit in _AGES if seconds >= span), _AGES[-1])
    return f"{int(seconds // span)} {unit}"


_SILENT_S: Final = 10.0
"""Seconds without the end of an episode after which an evaluation has a notice."""


class EvaluationProgress:
    """Shows the progress of an evaluation on a terminal, on one line that is removed at its end.

    A notice on stderr says, once, that no episode has ended for some time: the evaluation may never end.
    """

    def __init__(
        self, stream: TextIO, path: Path, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``path`` and ``timeout_s`` are of the evaluation; with a timeout it ends, so there is no notice."""
        self._line = StatusLine(stream) if stream.isatty() else None
        self._path, self._clock = path, clock
        self._due_s = math.inf if timeout_s is not None else None
        """When the notice is due; None before the first step, as making the envs may take long."""

    def __enter__(self) -> EvaluationProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line is not None:
            self._line.erase()

    def report(self, num_ended: int, num_env_steps: int) -> None:
        if self._due_s is None:
            self._due_s = self._clock() + _SILENT_S
        if num_ended == 0 and self._clock() >= self._due_s:
            self._due_s = math.inf
            if self._line is not None:
                self._line.erase()
            remedy = "config.horizon cuts episodes in a new run, if none ends by itself; --timeout bounds an evaluation"
            message = f"no episode has ended in {num_env_steps:,} env steps; {remedy}"
            print_notice_list([Notice(str(self._path), message)], "")
        if self._line is not None:
            self._line.show(f"{num_ended} episodes ended, {num_env_steps:,} env steps")


def print_evaluation(evaluation: Evaluation, video: Path | None, as_json: bool) -> None:
    """Print the returns and lengths of an evaluation, and its video, to stdout."""
    if as_json:
        print(json.dumps({**_evaluation_as_json(evaluation), "video": None if video is None else str(video)}))
        return
    played = evaluation.played
    returns, lengths = played.returns, played.lengths
    print(visible(f"{evaluation.run} on {evaluation.env}, {evaluation.checkpoint}"))
    print(f"episodes  {len(returns)}, {_exploration(evaluation)}")
    if evaluation.interval is None:
        print(f"return    {returns.mean():.2f} (one episode has no interval and no deviation)")
    else:
        from statistics import quantiles  # 10 ms, for no other command

        print("return    mean {:.2f} (95 % interval {:.2f} to {:.2f})".format(returns.mean(), *evaluation.interval))
        spread = (returns.min(), *quantiles(returns, n=4, method="inclusive"), returns.max(), returns.std())
        print("          min {:.2f}, quartiles {:.2f}, {:.2f} and {:.2f}, max {:.2f}, deviation {:.2f}".format(*spread))
    if played.of_agents:
        print("agents    " + ", ".join(f"{name} mean {each.mean():.2f}" for name, each in played.of_agents.items()))
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
        "return_std": None if evaluation.interval is None else float(returns.std()),
        "return_interval_95": evaluation.interval,
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
        **({"agents": {name: each.tolist() for name, each in played.of_agents.items()}} if played.of_agents else {}),
    }


def print_export(export: Export, as_json: bool) -> None:
    """Print the written file, its inputs and outputs, and its check, to stdout."""
    if as_json:
        print(json.dumps(_export_as_json(export)))
        return
    metadata, verification = export.metadata, export.verification
    print(visible(f"{metadata['agent']} on {metadata['env']}, {export.checkpoint}"))
    forms = [("input", form) for form in verification.inputs] + [("output", form) for form in verification.outputs]
    width = max(len(form.name) for _, form in forms)
    for kind, form in forms:
        print(f"{kind:<8}{form.name:<{width}}  {form.dtype:<7}  [{', '.join(map(str, form.shape))}]")
    print(f"checked  {_checked(verification)}")
    print(visible(f"wrote    {export.file} ({export.num_bytes / 1e6:.2f} MB)"))


def _checked(verification: Verification) -> str:
    counts = verification.num_observations
    sources = ", ".join(f"{count} {source}" for source, count in counts.items())
    difference = f"largest difference {verification.largest_difference:.1e}"
    return f"on {sum(counts.values())} observations ({sources}): {_actions(verification)}{difference}"


def _actions(verification: Verification) -> str:
    match verification.num_other_actions:
        case None:
            return ""
        case 0:
            return "equal actions, "
        case number:
            return f"actions differ on {number}, where values tie, "


def _export_as_json(export: Export) -> dict[str, object]:
    verification = export.verification
    return {
        "file": str(export.file),
        "bytes": export.num_bytes,
        "checkpoint": str(export.checkpoint),
        "metadata": export.metadata,
        "inputs": list(map(vars, verification.inputs)),
        "outputs": list(map(vars, verification.outputs)),
        "observations": sum(verification.num_observations.values()),
        "largest_difference": verification.largest_difference,
        "other_actions": verification.num_other_actions,
    }
