"""PPO, APPO and PQN beside other libraries: seconds and env steps to a reward, steps/s, env steps per CPU second.

Each line is one run of one program: `rlexp run` as a user starts it; the agent of the same file alone in one process,
without Ray, which is like for like with Stable-Baselines3; and the peers. "goal s", "train s" and steps/s are those of
training, without the start of Python, Ray and workers, and without what jax and numba compile. "command s" and "CPU s"
are those of the whole command with all its processes. Each process computes with one thread, on the CPU. After the
seeds of a task come the medians; a seed that never reached the goal counts there as slower than any other. The ratios
come last. A peer that is not installed is left out.

`make bench-peers` installs the peers, but for two. CleanRL is files: `git clone https://github.com/vwxyzjn/cleanrl`,
and give its folder `cleanrl` in --cleanrl-files; its Gymnasium is 0.29, and later ones change when it counts. RLlib's
old API stack is `pip install "ray[rllib]==2.6.3"` with the older packages that it needs, in an environment of its own.

    python benchmarks/ppo.py [--tasks cartpole pendulum appo pong pqn defaults] [--seeds 0 1 2 3 4] [--PEER PYTHON]
        [--cleanrl-files DIR] [--published FILE] [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.comparison import Column, Line, Table, conditions, in_turns, median_of, options
from benchmarks.ppo_programs import Figures, experiment_of, measure_agent, measure_command, measure_peer
from benchmarks.ppo_tasks import CLEANRL, PACKAGES, RLLIB, TASKS, Task, published
from benchmarks.processes import add_peer_options, found_peers, unwind_on_sigterm

COMMAND, AGENT = "rlexp run", "rlexp alone"

COLUMNS = (
    Column("task", "task", 9),
    Column("program", "program", 14),
    Column("seed", "seed", 6),
    Column("goal_s", "goal s", 7, ".1f"),
    Column("goal_steps", "goal steps", 10, ",.0f"),
    Column("train_s", "train s", 7, ".1f"),
    Column("steps", "env steps", 9, ",.0f"),
    Column("reward", "reward", 8, ".1f"),
    Column("steps_per_s", "steps/s", 8, ",.0f"),
    Column("steps_per_cpu_s", "steps/CPU s", 11, ",.0f"),
    Column("command_s", "command s", 9, ".1f"),
    Column("command_cpu_s", "CPU s", 6, ".1f"),
)
MEASURED = [column.key for column in COLUMNS if column.key not in ("task", "program", "seed")]
COMPARED = ("goal_s", "goal_steps", "steps_per_s", "steps_per_cpu_s", "command_s")
RATIOS = (
    Column("task", "task", 9),
    Column("program", "program", 14),
    Column("peer", "by", 14),
    *(Column(column.key, column.title, 11, ".2f") for column in COLUMNS if column.key in COMPARED),
)

Program = Callable[[Task, Path, int], Figures]
"""Trains a task, the experiment in a file, with a seed."""
Medians = Mapping[str, float | None]


def programs_of(task: Task, file: Path, peers: Mapping[str, str], cleanrl: str) -> dict[str, Program]:
    """Return what trains ``task``, by name; ``peers`` has the Python of each that is installed."""
    names = [name for name in task.peers if name in peers]
    programs: dict[str, Program] = {name: partial(measure_peer, name, peers[name], cleanrl) for name in names}
    programs[COMMAND] = measure_command
    if experiment_of(file).config.num_workers == 0:
        programs[AGENT] = measure_agent
    return programs


def compare(task: Task, file: Path, programs: Mapping[str, Program], seeds: Sequence[int], table: Table) -> list[Line]:
    """Add a line for each run to ``table``, then the medians; return the lines of the ratios."""

    def runs(name: str, program: Program) -> Callable[[], Figures]:
        """Return what measures the next seed at each call."""
        waiting = iter(seeds)

        def measure() -> Figures:
            seed = next(waiting)
            line = {"task": task.name, "program": name, "seed": seed, **program(task, file, seed)}
            table.add(line)
            return line

        return measure

    turns = {name: runs(name, program) for name, program in programs.items()}
    medians = {name: medians_of(lines) for name, lines in in_turns(turns, len(seeds)).items()}
    for name, values in medians.items():
        table.add({"task": task.name, "program": name, "seed": "median", **values})
    return ratios(task, medians)


def medians_of(lines: Sequence[Line]) -> Medians:
    """Return the medians of what was measured."""
    return {key: median_of([line.get(key) for line in lines]) for key in MEASURED}


def ratios(task: Task, medians: Mapping[str, Medians]) -> list[Line]:
    """Return a line for each of rlexp's programs and each peer: rlexp's medians divided by the peer's."""
    pairs = [(ours, peer) for ours in (COMMAND, AGENT) for peer in PACKAGES if {ours, peer} <= medians.keys()]
    return [
        {"task": task.name, "program": ours, "peer": peer}
        | {key: quotient(medians[ours][key], medians[peer][key]) for key in COMPARED}
        for ours, peer in pairs
    ]


def quotient(value: float | None, divisor: float | None) -> float | None:
    """Return a ratio, None where one of both was not measured."""
    return None if value is None or not divisor else value / divisor


def main() -> None:
    parser = options(__doc__)
    names = [task.name for task in TASKS]
    parser.add_argument("--tasks", nargs="*", choices=names, default=names, help="what is trained")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5), metavar="N", help="one run of each program")
    add_peer_options(parser, {name: package for name, package in PACKAGES.items() if name != RLLIB})
    about = "a Python that has RLlib 2.6.3; that of RLLIB_PYTHON in the environment unless given"
    parser.add_argument("--rllib", default=os.environ.get("RLLIB_PYTHON"), metavar="PYTHON", help=about)
    about = "the folder of CleanRL's files; it is left out unless given"
    parser.add_argument("--cleanrl-files", default="", metavar="DIR", help=about)
    about = "cartpole-ppo.yaml of Ray 2.5.0, to be trained too"
    parser.add_argument("--published", type=Path, metavar="FILE", help=about)
    args: argparse.Namespace = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    peers = found_peers(args, PACKAGES)
    if not args.cleanrl_files:
        peers.pop(CLEANRL, None)
    table, lines = Table(COLUMNS, args.json), list[Line]()
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder:
        tasks = [task for task in TASKS if task.name in args.tasks]
        for task in [*tasks, *([published(args.published)] if args.published else [])]:
            file = task.file(Path(folder))
            programs = programs_of(task, file, peers, args.cleanrl_files)
            lines += compare(task, file, programs, args.seeds, table)
    table = Table(RATIOS, args.json)
    for line in lines:
        table.add(line)


if __name__ == "__main__":
    main()
