"""How long trials take to start: in processes that train one trial after another, and in new processes.

Each line is one `rlexp run` of CartPole with `--trials` seeds that stop after 300 env steps. "start s" is the time from
the end of a trial to the first result of the trial that takes its place; the first trials of a run do not count.
"trial s" is the time of the whole command for each trial, with the start of Ray.

    python benchmarks/trial_start.py [--agents DQN APEX] [--trials 12] [--at-once 2] [--reuse true false] [--json]
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.comparison import Column, Table, conditions, options
from benchmarks.processes import Event, run_experiment, unwind_on_sigterm
from rlexp.cluster.room.machine import available_cpus
from rlexp.config.yaml.reader import to_yaml

NUM_WORKERS = {"DQN": 0, "APEX": 2}
TINY = {
    "learning_starts": 100,
    "sample_batch_size": 10,
    "timesteps_per_iteration": 100,
    "min_iter_time_s": 0,
    "num_cpus_per_worker": 0.1,
}
COLUMNS = (
    Column("agent", "agent", 5),
    Column("reuse_actors", "reuse_actors", 12),
    Column("start_s", "start s, median", 15, ".2f"),
    Column("longest_start_s", "longest", 7, ".2f"),
    Column("trial_s", "trial s", 7, ".2f"),
    Column("ended_s", "ended s", 7, ".1f"),
    Column("load", "load after", 10, ".1f"),
)


def write_experiment(file: Path, agent: str, reuse: bool, trials: int, at_once: int) -> None:
    """Write the file of a run in which so many trials have room at once."""
    workers = NUM_WORKERS[agent]
    cpus = available_cpus() / at_once - workers * TINY["num_cpus_per_worker"]
    config = {**TINY, "num_workers": workers, "num_cpus_for_driver": round(cpus, 4)}
    entry = {"run": agent, "env": "CartPole-v1", "stop": {"timesteps_total": 300}, "num_samples": trials}
    file.write_text(to_yaml({"tiny": {**entry, "reuse_actors": reuse, "config": config}}), encoding="utf-8")


def start_times(events: Sequence[Event], at_once: int) -> list[float]:
    """Return the seconds from each trial's end to the first result of the one that takes its place."""
    ends = [event.seconds for event in events if event.kind == "trial_end"]
    firsts: dict[str, float] = {}
    for event in events:
        if event.kind == "result":
            firsts.setdefault(event.fields["trial"], event.seconds)
    later = sorted(firsts.values())[at_once:]
    return [first - end for end, first in zip(ends, later, strict=False)]


def measure(agent: str, reuse: bool, trials: int, at_once: int, timeout_s: float) -> dict[str, Any]:
    """Return the line of one run."""
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder:
        file = Path(folder) / "tiny.yaml"
        write_experiment(file, agent, reuse, trials, at_once)
        events = run_experiment(file, Path(folder) / "out", (), timeout_s)
    starts = start_times(events, at_once)
    return {
        "agent": agent,
        "reuse_actors": "true" if reuse else "false",
        "start_s": statistics.median(starts),
        "longest_start_s": max(starts),
        "trial_s": events[-1].seconds / trials,
        "ended_s": events[-1].seconds,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--agents", nargs="+", choices=NUM_WORKERS, default=list(NUM_WORKERS), help="what trains")
    parser.add_argument("--trials", type=int, default=12, metavar="N", help="of each run")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="trials that run at a time")
    parser.add_argument("--reuse", nargs="+", choices=("true", "false"), default=("true", "false"), help="reuse_actors")
    parser.add_argument("--timeout", type=float, default=1200.0, metavar="S", help="when a run is given up")
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    for agent in args.agents:
        for reuse in args.reuse:
            table.add(measure(agent, reuse == "true", args.trials, args.at_once, args.timeout))


if __name__ == "__main__":
    main()
