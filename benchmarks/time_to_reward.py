"""How long an experiment takes from its command to its first result, and to the reward that its file stops at.

Seconds are those of the clock on the wall, from the start of the `rlexp run` process: Python's and Ray's start
are in them. "ended" is when the command returned. "greedy mean" is what `rlexp evaluate` then says of the best
checkpoint. A seed that never reached the reward has a dash.

    python benchmarks/time_to_reward.py [FILE] [--seeds 0 1 2 3 4] [--episodes 20] [--timeout 600] [--json]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.comparison import Column, Line, Table, conditions, median_of, options
from benchmarks.processes import Event, evaluate, run_experiment, unwind_on_sigterm
from rlexp.config.load import load_plan

REWARD = "episode_reward_mean"
COLUMNS = (
    Column("seed", "seed", 6),
    Column("first_result_s", "first result s", 14, ".1f"),
    Column("goal_s", "goal reached s", 14, ".1f"),
    Column("ended_s", "ended s", 7, ".1f"),
    Column("env_steps", "env steps", 10, ",.0f"),
    Column("greedy_mean", "greedy mean", 11, ".1f"),
)


def goal_of(file: Path) -> float:
    """Return the mean reward that the one trial of ``file`` stops at."""
    trials = load_plan([file]).trials
    if len(trials) != 1 or REWARD not in trials[0].experiment.stop:
        raise SystemExit(f"{file}: must make one trial that has stop.{REWARD}")
    return trials[0].experiment.stop[REWARD]


def measure(file: Path, goal: float, seed: int, episodes: int, timeout_s: float) -> dict[str, Any]:
    """Return the line of one seed."""
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder:
        arguments = ["--seed", str(seed), "-o", "checkpoint_at_end=true"]
        events = run_experiment(file, Path(folder), arguments, timeout_s)
        run = next(Path(event.fields["directory"]) for event in events if event.kind == "start")
        evaluation = evaluate(run, episodes, timeout_s)
    results = [event for event in events if event.kind == "result"]
    return {
        "seed": seed,
        "first_result_s": results[0].seconds,
        "goal_s": next((event.seconds for event in results if reward_of(event) >= goal), None),
        "ended_s": events[-1].seconds,
        "env_steps": results[-1].fields["result"]["timesteps_total"],
        "greedy_mean": evaluation["return_mean"],
    }


def reward_of(event: Event) -> float:
    """Return the mean reward of a result, below everything while no episode has ended."""
    reward = event.fields["result"][REWARD]
    return -math.inf if reward is None else reward


def median_line(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the medians of the columns, where a seed that never reached the reward took longer than any other."""
    keys = [column.key for column in COLUMNS if column.key != "seed"]
    return {"seed": "median"} | {key: median_of([line[key] for line in lines]) for key in keys}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("experiments/cartpole-apex.yaml"), metavar="FILE")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5), metavar="N", help="one run each")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="greedy episodes of the evaluation")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="when a command is given up")
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    goal = goal_of(args.file)
    table, lines = Table(COLUMNS, args.json), []
    for seed in args.seeds:
        lines.append(measure(args.file, goal, seed, args.episodes, args.timeout))
        table.add(lines[-1])
    table.add(median_line(lines))


if __name__ == "__main__":
    main()
