"""How long an experiment takes from its command to its first result, and where the time goes.

Seconds are those of the clock on the wall, from the start of the `rlexp run` process. Each run ends after its first
result. "cpu s" is the CPU time of all its processes until then: on an idle machine with two cores, a command that
used both all the time would take half of it. With `--timeline`, the processes of the last run follow: when each
began, and the CPU time that it had used when the first result came.

    python -m benchmarks.first_result [FILE] [--repeats 5] [--timeline] [--json]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from benchmarks.comparison import Column, Table, conditions, median_of, options
from benchmarks.process_timeline import ProcessTimeline, SeenProcess
from benchmarks.processes import RLEXP, end, unwind_on_sigterm

ONE_RESULT = ("-o", "stop.training_iteration=1", "-o", "checkpoint_at_end=false")
COLUMNS = (
    Column("run", "run", 6),
    Column("started_s", "run exists s", 12, ".2f"),
    Column("first_result_s", "first result s", 14, ".2f"),
    Column("ended_s", "ended s", 7, ".2f"),
    Column("cpu_s", "cpu s", 6, ".2f"),
)
OF_PROCESSES = (
    Column("name", "process", 40),
    Column("began_s", "began s", 8, ".2f"),
    Column("ended_s", "ended s", 8, ".2f"),
    Column("cpu_s", "cpu s", 6, ".2f"),
)


@dataclass(frozen=True)
class Measured:
    """One run."""

    line: dict[str, Any]
    processes: Sequence[SeenProcess]
    """As they were when the first result came."""


def measure(file: Path, arguments: Sequence[str], timeout_s: float) -> Measured:
    """Run the experiment to its first result; raises CalledProcessError where it fails."""
    seconds: dict[str, float] = {}
    processes: list[SeenProcess] = []
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder, ProcessTimeline() as timeline:
        command = [*RLEXP, "run", str(file), "--out", folder, "--json", *ONE_RESULT, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        watchdog = Timer(timeout_s, end, [process])
        watchdog.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)["event"]
                if event == "result" and event not in seconds:
                    processes = [SeenProcess(**vars(each)) for each in timeline.seen.values()]
                seconds.setdefault(event, timeline.now_s)
            code = process.wait()
        finally:
            watchdog.cancel()
            end(process)
        ended_s = timeline.now_s
    if code:
        raise subprocess.CalledProcessError(code, command)
    cpu_s = sum(each.cpu_s for each in processes)
    times = {"started_s": seconds["start"], "first_result_s": seconds["result"], "ended_s": ended_s}
    return Measured({**times, "cpu_s": cpu_s}, processes)


def main() -> None:
    parser = options(__doc__, repeats=5)
    parser.add_argument("file", nargs="?", type=Path, default=Path("experiments/cartpole-apex.yaml"), metavar="FILE")
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="for each run")
    parser.add_argument("--timeline", action="store_true", help="print the processes of the last run")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="when a command is given up")
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table, runs = Table(COLUMNS, args.json), []
    for number in range(args.repeats):
        overrides = [word for override in args.overrides for word in ("-o", override)]
        runs.append(measure(args.file, overrides, args.timeout))
        table.add({"run": str(number + 1), **runs[-1].line})
    keys = [column.key for column in COLUMNS if column.key != "run"]
    table.add({"run": "median"} | {key: median_of([run.line[key] for run in runs]) for key in keys})
    if args.timeline:
        processes = Table(OF_PROCESSES, args.json)
        for process in sorted(runs[-1].processes, key=lambda each: each.began_s):
            processes.add(vars(process))


if __name__ == "__main__":
    main()
