"""How many files of RLlib's users are understood: `make corpus DIR=folder`, outcomes by algorithm and their reasons.

`python -m benchmarks.corpus FOLDER NAME=module:Class ...` gives classes for registered names, as `rlexp check --map`.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rlexp.cluster.room.fit import check_fits, fitted
from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.config.command_line import parse_names
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.yaml.reader import read_file
from rlexp.errors import RlexpError

ACCEPTED, REFUSED = "accepted", "refused"
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def main() -> None:
    files = sorted(Path(sys.argv[1]).glob("*.y*ml"))
    names = parse_names(sys.argv[2:])
    outcomes, reasons, notices = Counter[str](), Counter[str](), Counter[str]()
    by_algorithm = Counter[str]()
    seconds = []
    for file in files:
        started = time.perf_counter()
        outcome, said = look_at(file, names)
        seconds.append(time.perf_counter() - started)
        outcomes[outcome] += 1
        by_algorithm[f"{algorithms_of(file)}: {outcome}"] += 1
        (notices if outcome == ACCEPTED else reasons).update(said)
    print_table(f"{len(files)} files with --fit", outcomes)
    print_table("the same by algorithm", by_algorithm)
    print_table("why files are refused (a file may have several reasons)", reasons)
    print_table("what is said of accepted ones", notices)
    print(f"reading a file: median {statistics.median(seconds) * 1e3:.1f} ms, longest {max(seconds) * 1e3:.1f} ms")


def look_at(file: Path, names: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return what becomes of a file and what is said about it, without numbers, so that reasons can be counted."""
    cluster = Cluster.of(this_machine())
    try:
        plan = load_plan([file], options=LoadOptions(names=names, adjust=partial(fitted, cluster=cluster)))
        check_fits(plan.trials, cluster)
    except RlexpError as error:
        return REFUSED, {without_numbers(problem.message) for problem in error.problems}
    return ACCEPTED, {without_numbers(notice.message) for notice in plan.notices}


def algorithms_of(file: Path) -> str:
    """Return what the experiments of a file run: ``DQN``, or several names."""
    root = read_file(file, str(file)).root
    entries = root.entries().values() if root is not None else ()
    named = (entry.child("run") or entry.child("algo") for entry in entries)
    return ", ".join(sorted({str(node.value) for node in named if node is not None})) or "none"


def without_numbers(message: str) -> str:
    return NUMBER.sub("N", message)[:110]


def print_table(title: str, counts: Counter[str]) -> None:
    print(f"\n{title}")
    for text, count in counts.most_common():
        print(f"{count:6}  {text}")


if __name__ == "__main__":
    main()
