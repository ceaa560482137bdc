"""How long it takes to read an event file: ours against TensorBoard's EventAccumulator, every scalar of it.

The file is written with TensorBoard's own messages and record format, 20 tags in turn, about 50 bytes
a scalar. Each reader is a process of its own, so that its peak memory is its own too (what it imports
included, the import's time not). Readers take turns.

    python -m benchmarks.event_files [--scalars 200000] [--repeats 3] [--without NAME] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TAGS = 20

Reader = Callable[[str], int]
"""Reads the file and returns how many scalars it found."""


def write_events(path: Path, scalars: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for index in range(scalars):
            value = Summary.Value(tag=f"train/{index % TAGS}", simple_value=math.sin(index))
            event = Event(wall_time=1.7e9 + index / 10, step=index // TAGS, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())


def rlexp_table() -> Reader:
    """What ``rlexp logs`` does: figures and curves, in bounded memory."""
    from rlexp.compare.event_files.gathering import Summary
    from rlexp.compare.event_files.runs import find_runs, read_run

    def read(path: str) -> int:
        contents = read_run(find_runs([Path(path)])[0], Summary, lambda tag: True)
        return sum(kept.figures().points for kept in contents.scalars.values())

    return read


def rlexp_points() -> Reader:
    """What ``rlexp logs --csv`` does before it prints: all points in memory."""
    from rlexp.compare.event_files.gathering import Series
    from rlexp.compare.event_files.runs import find_runs, read_run

    def read(path: str) -> int:
        contents = read_run(find_runs([Path(path)])[0], Series, lambda tag: True)
        return sum(len(kept.points()) for kept in contents.scalars.values())

    return read


def event_accumulator() -> Reader:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(path: str) -> int:
        accumulator = EventAccumulator(path, size_guidance={"scalars": 0})  # 0: no down-sampling
        accumulator.Reload()
        return sum(len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"])

    return read


READERS = {"rlexp table": rlexp_table, "rlexp points": rlexp_points, "EventAccumulator": event_accumulator}


def read_once(reader: str, path: str) -> None:
    """Print how one reader did, as JSON; the parent process asks for it."""
    read = READERS[reader]()
    start = time.perf_counter()
    scalars = read(path)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak, "scalars": scalars}))


def measure(reader: str, path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.event_files", "--reader", reader, "--file", str(path)]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def compare(readers: list[str], scalars: int, repeats: int) -> list[dict[str, Any]]:
    """Return one line of the table for each reader, the median of interleaved repeats."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.out.tfevents.0000000000.benchmark"
        write_events(path, scalars)
        megabytes = path.stat().st_size / 1e6
        runs: dict[str, list[dict[str, float]]] = {reader: [] for reader in readers}
        for _ in range(repeats):
            for reader in readers:
                runs[reader].append(measure(reader, path))
    seconds = {reader: statistics.median(run["seconds"] for run in runs[reader]) for reader in readers}
    return [
        {
            "reader": reader,
            "scalars": int(runs[reader][0]["scalars"]),
            "file_mb": megabytes,
            "seconds": seconds[reader],
            "fastest_s": min(run["seconds"] for run in runs[reader]),
            "slowest_s": max(run["seconds"] for run in runs[reader]),
            "peak_rss_mb": max(run["peak_rss_bytes"] for run in runs[reader]) / 1e6,
            "rlexp_table_is_faster_by": seconds[reader] / seconds["rlexp table"],
        }
        for reader in readers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalars", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without", choices=[name for name in READERS if name != "rlexp table"], action="append")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--reader", choices=list(READERS), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader:
        read_once(args.reader, args.file)
        return
    lines = compare([name for name in READERS if name not in (args.without or ())], args.scalars, args.repeats)
    if args.json:
        print("\n".join(json.dumps(line) for line in lines))
        return
    print(f"{lines[0]['scalars']:,} scalars, {lines[0]['file_mb']:.0f} MB")
    print(
        f"{'reader':<18}{'seconds':>9}{'fastest':>9}{'slowest':>9}{'peak RSS MB':>13}{'rlexp table is faster by':>26}"
    )
    for line in lines:
        seconds = "".join(f"{line[key]:>9.2f}" for key in ("seconds", "fastest_s", "slowest_s"))
        print(f"{line['reader']:<18}{seconds}{line['peak_rss_mb']:>13.0f}{line['rlexp_table_is_faster_by']:>25.1f}x")


if __name__ == "__main__":
    main()
