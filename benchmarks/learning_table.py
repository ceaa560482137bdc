"""The table of docs/results.md: what groups of runs reached, one line for each, in Markdown or as JSON.

A group is given as to `rlexp compare`. Its trials are one env, one agent, several seeds. "training" is the mean
return of the last 100 episodes of training, exploration included; "greedy" that of 20 greedy episodes with the final
weights: `rlexp evaluate` plays them with the newest checkpoint, and where a program has none, the evaluation in its
last row counts. Both are means over the seeds with 95 % intervals by Student's t, and "greedy, by seed" has the
means of the seeds. "seconds" is the median of the seconds of training; "CPU s" is known of a program with one process.

    python benchmarks/learning_table.py [NAME=]PATH... [--episodes 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison import Line, options
from benchmarks.processes import evaluate
from rlexp.compare.curve import read_curve
from rlexp.compare.group import Group, SettingsReader, groups_of
from rlexp.compare.run_listing import TrialFolder
from rlexp.runs.checkpoints import newest_checkpoint

REWARD: Final = "episode_reward_mean"
PLAYED: Final = f"evaluation/{REWARD}"
CPU: Final = "cpu_total_s"
TIMEOUT_S: Final = 600.0
T_QUANTILES: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""0.975 quantiles of Student's t with 1, 2, 3 ... degrees of freedom."""
TITLES: Final = ("env", "agent", "seeds", "env steps", "seconds", "CPU s", "training", "greedy", "greedy, by seed")


@dataclass(frozen=True)
class Outcome:
    """What one trial came to."""

    env: str
    steps: float
    seconds: float
    cpu_s: float | None
    """Of its one process; None where it is not known."""
    training: float
    greedy: float


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, and how far its 95 % interval extends to both sides; None with one seed."""

    value: float
    margin: float | None

    def __str__(self) -> str:
        return shown(self.value) if self.margin is None else f"{shown(self.value)} ± {shown(self.margin)}"


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean with its interval by Student's t: ten values are the most that there are quantiles for."""
    value = statistics.fmean(values)
    if len(values) < 2:
        return Mean(value, None)
    quantile = T_QUANTILES[len(values) - 2]
    return Mean(value, quantile * statistics.stdev(values) / math.sqrt(len(values)))


def shown(value: float) -> str:
    """Return a return as a table shows it: whole from 100 on, with more digits the smaller it is."""
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def outcome_of(trial: TrialFolder, episodes: int) -> Outcome:
    """Return what ``trial`` came to; raises SystemExit where its final weights were never played."""
    curve = read_curve(trial.path, REWARD)
    if not len(curve.steps):
        raise SystemExit(f"{trial.path} has no results")
    cpu = read_curve(trial.path, CPU).values
    return Outcome(
        env=trial.env,
        steps=float(curve.steps[-1]),
        seconds=float(curve.seconds[-1]),
        cpu_s=float(cpu[-1]) if len(cpu) else None,
        training=float(curve.values[-1]),
        greedy=greedy_mean(trial.path, float(curve.steps[-1]), episodes),
    )


def greedy_mean(trial: Path, steps: float, episodes: int) -> float:
    """Return the mean return of greedy episodes with the weights that a trial has after ``steps``, its last ones."""
    checkpoint = newest_checkpoint(trial)
    if checkpoint is not None:
        return float(evaluate(checkpoint, episodes, TIMEOUT_S)["return_mean"])
    played = read_curve(trial, PLAYED)
    if not len(played.steps) or played.steps[-1] < steps:
        raise SystemExit(f"{trial} has neither a checkpoint nor an evaluation in its last row")
    return float(played.values[-1])


def line_of(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the line of a group."""
    cpu_s = [outcome.cpu_s for outcome in outcomes if outcome.cpu_s is not None]
    training = mean_of([outcome.training for outcome in outcomes])
    greedy = mean_of([outcome.greedy for outcome in outcomes])
    return {
        "env": outcomes[0].env,
        "agent": name,
        "seeds": len(outcomes),
        "steps": statistics.median(outcome.steps for outcome in outcomes),
        "seconds": statistics.median(outcome.seconds for outcome in outcomes),
        "cpu_s": statistics.median(cpu_s) if cpu_s else None,
        "training": training.value,
        "training_margin": training.margin,
        "greedy": greedy.value,
        "greedy_margin": greedy.margin,
        "greedy_by_seed": [outcome.greedy for outcome in outcomes],
    }


def markdown(line: Line) -> str:
    """Return a line of the table of the page."""
    cells = (
        line["env"],
        line["agent"],
        str(line["seeds"]),
        f"{line['steps']:,.0f}",
        f"{line['seconds']:,.0f}",
        "-" if line["cpu_s"] is None else f"{line['cpu_s']:,.0f}",
        str(Mean(line["training"], line["training_margin"])),
        str(Mean(line["greedy"], line["greedy_margin"])),
        " · ".join(shown(value) for value in line["greedy_by_seed"]),
    )
    return f"| {' | '.join(cells)} |"


def line_of_group(group: Group, episodes: int) -> dict[str, Any]:
    """Play the final weights of each trial of a group and return its line."""
    outcomes = [outcome_of(trial, episodes) for trial in group.trials]
    if len({outcome.env for outcome in outcomes}) > 1:
        raise SystemExit(f"{group.name} has several envs: their returns have no mean")
    return line_of(group.name, outcomes)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("groups", nargs="+", metavar="[NAME=]PATH", help="what rlexp compare takes")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="greedy episodes of each trial")
    args: argparse.Namespace = parser.parse_args()
    if not args.json:
        print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
    for group in groups_of(args.groups, SettingsReader()):
        line = line_of_group(group, args.episodes)
        print(json.dumps(line) if args.json else markdown(line), flush=True)


if __name__ == "__main__":
    main()
