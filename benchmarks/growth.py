"""What it costs as the work grows: four curves in one picture, and the slope of each of their lines.

They are rows/s over workers, real ones and canned ones that cost nothing; seconds of an update over its rows;
seconds of a sweep's bookkeeping over its trials; memory of replay over its rows. A slope is the exponent of the line:
1 where twice the work costs twice as much. "at the end" is that of the last two points, where what is fixed counts
least. It needs a machine that does nothing else for seven minutes; rows of Pong need ale-py.

    python -m benchmarks.growth [workers updates sweep memory] [--picture FILE] [--json]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from benchmarks import apex_throughput, learner, sweep_bookkeeping
from benchmarks.comparison import Column, Table, conditions, options
from benchmarks.processes import in_own_process, unwind_on_sigterm
from benchmarks.replay_buffers import fill
from benchmarks.replay_peers import OURS
from benchmarks.replay_rows import KINDS

WORKERS: Final = (1, 2, 4, 8, 16)
CANNED: Final = (1, 4, 16, 64, 360)
RUN_S: Final = 15.0
ROWS_OF_UPDATES: Final = (32, 128, 512, 2048)
LAYERS: Final = (64, 256, 1024)
TRIALS: Final = (1, 10, 100, 1000, 5000)
MEMORY: Final = {
    "CartPole": ("cartpole", "rlexp", (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)),
    "Pong, LZ4": ("frames", "rlexp lz4", (1_000, 4_000, 16_000, 64_000)),
    "Pong": ("frames", "rlexp", (1_000, 4_000, 16_000, 64_000)),
}
TIMEOUT_S: Final = 300.0
"""Bound of what another process measures."""

Points = list[tuple[float, float]]
"""How much work, and the rows/s, seconds or bytes at it."""

COLUMNS = (
    Column("curve", "curve", 9),
    Column("line", "line", 19),
    Column("points", "points", 60),
    Column("slope", "slope", 5, ".2f"),
    Column("slope_at_end", "at the end", 10, ".2f"),
)


@dataclass(frozen=True)
class Growth:
    """A curve of the picture: what grows, what that costs, and how each line is measured."""

    work: str
    cost: str
    measure: Callable[[], Mapping[str, Points]]


def workers() -> dict[str, Points]:
    """Return env steps/s of whole runs, and rows/s that the driver carries from canned workers."""
    real: Points = []
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder:
        file = Path(folder) / "apex-throughput.yaml"
        file.write_text(apex_throughput.EXPERIMENT, encoding="utf-8")
        for number in WORKERS:
            setting = apex_throughput.Setting.parse(f"{number}x8x512")
            real.append((number, apex_throughput.measure(setting, file, RUN_S)["sampled_per_s"]))
    loads = [f"{number}:0:50:small" for number in CANNED]
    command = [sys.executable, "-m", "benchmarks.driver", *loads, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    rows = [json.loads(line)["rows_per_s"] for line in done.stdout.splitlines()]
    return {"8 CartPoles each": real, "canned, 50 rows each": list(zip(CANNED, rows, strict=True))}


def updates() -> dict[str, Points]:
    """Return seconds of DQN's update over its rows, for two layers of each width."""
    return {f"{width}-{width}": in_own_process(TIMEOUT_S, _updates_of, width) for width in LAYERS}


def _updates_of(width: int) -> Points:
    points: Points = []
    for rows in ROWS_OF_UPDATES:
        case = learner.Case("", (4,), 2, (width, width), rows)
        batches = [learner.make_batch(case, np.random.default_rng(0)) for _ in range(learner.NUM_BATCHES)]
        per_second = learner.timed(learner.learner_update(case, batches))
        per_second()  # warms up
        points.append((rows, 1 / float(np.median([per_second() for _ in range(3)]))))
    return points


def sweep() -> dict[str, Points]:
    """Return seconds of a whole sweep whose trials do not train: the search, and all that it writes."""
    totals: Points = []
    disk: Points = []
    sweep_bookkeeping.measure(1, num_seeds=1, scheduler="asha")  # warms up
    for trials in TRIALS:
        figures = sweep_bookkeeping.measure(trials, num_seeds=1, scheduler="asha")
        totals.append((trials, figures["total"]))
        disk.append((trials, figures["disk"]))
    return {"in all": totals, "waits for the disk": disk}


def memory() -> dict[str, Points]:
    """Return the bytes of a full replay, as it counts them; replay_buffers.py has what a process grows by."""
    return {
        line: [(rows, in_own_process(TIMEOUT_S, _memory_of, kind, buffer, rows)) for rows in sizes]
        for line, (kind, buffer, sizes) in MEMORY.items()
        if KINDS[kind].is_possible
    }


def _memory_of(kind: str, name: str, rows: int) -> float:
    sized = replace(KINDS[kind], capacity=rows)
    batches: Any = sized.batches()
    first = next(batches)
    buffer = OURS[name](rows, first)
    fill(buffer, batches, rows)
    return float(buffer.nbytes)


CURVES: Final = {
    "workers": Growth("workers", "rows/s", workers),
    "updates": Growth("rows of an update", "seconds", updates),
    "sweep": Growth("trials of a sweep", "seconds", sweep),
    "memory": Growth("rows in replay", "bytes", memory),
}


def slope(points: Points) -> float:
    """Return the exponent: the slope of the straight line through the logarithms of the points."""
    work, cost = np.log(np.array(points)).T
    return float(np.polyfit(work, cost, 1)[0])


def draw(curves: Mapping[str, Mapping[str, Points]], file: Path) -> None:
    """Draw all curves, work and cost by their logarithms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    for axes, (name, lines) in zip(figure.subplots(2, 2).flat, curves.items(), strict=False):
        for line, points in lines.items():
            axes.loglog(*zip(*points, strict=True), marker="o", label=f"{line}: slope {slope(points):.2f}")
        axes.set(xlabel=CURVES[name].work, ylabel=CURVES[name].cost)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(file)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"{', '.join(CURVES)}; all unless given")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw them into this file")
    args = parser.parse_args()
    if unknown := set(args.curves) - set(CURVES):
        parser.error(f"no such curve: {', '.join(sorted(unknown))}")
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    curves = {name: CURVES[name].measure() for name in args.curves or CURVES}
    for name, lines in curves.items():
        for line, points in lines.items():
            shown = " ".join(f"{work:g}:{cost:.3g}" for work, cost in points)
            fields = {
                "points": points if args.json else shown,
                "slope": slope(points),
                "slope_at_end": slope(points[-2:]),
            }
            table.add({"curve": name, "line": line, **fields})
    if args.picture:
        draw(curves, args.picture)


if __name__ == "__main__":
    main()
