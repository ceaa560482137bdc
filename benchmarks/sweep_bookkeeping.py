"""What a sweep costs beside training: seconds in each part of its bookkeeping, with trials that only report numbers.

The trials need no Ray and do not train: their rewards are computed, eight trials run at a time, each reports up to ten
rows. All else is that of a real sweep: searcher, scheduler, journal, ranking and every file. The leaderboard is drawn
five times a second. Time in a part does not include the parts that it calls; ``disk`` is the time that all of them wait
until the disk has what they wrote.

    python -m benchmarks.sweep_bookkeeping [--trials 1000 --trials 5000] [--scheduler asha] [--num-seeds 2] [--json]
"""

from __future__ import annotations

import functools
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.comparison import Column, Table, conditions, options
from rlexp.config.keys.trial import Trial
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.sweep import Sweep
from rlexp.config.yaml.reader import to_yaml
from rlexp.runs.record import RecordedError, Status
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.record import Journal, SearchRecord
from rlexp.search.search import Search
from rlexp.search.searchers import PlannedSearcher, make_searcher
from rlexp.search.standings import Standings
from rlexp.search.state import SearchState
from rlexp.search.trial_scheduler import Verdict
from rlexp.terminal.summary import leaderboard, leaderboard_lines

ROWS = 10
STEPS_PER_ROW = 1_000
SECONDS_PER_DRAWING = 0.2
CAPACITY = 8
FAILING = 0.01
"""Share of the trials that fail at their fifth row."""
PARTS: dict[str, list[tuple[type, tuple[str, ...]]]] = {
    "points": [(Sweep, ("trials", "planned_points")), (PlannedSearcher, ("suggest", "record"))],
    "state": [(SearchState, ("configured", "begun", "reported", "ended", "judge_waiting"))],
    "standings": [(Standings, ("begin", "on_result", "on_end", "of_configuration", "score_of", "ranked", "best"))],
    "sweep files": [(SearchRecord, ("write", "write_when_due", "write_best"))],
    "journal": [(Journal, ("write",))],
    "run.json": [(RunDirectory, ("add", "trial_result", "trial_status", "write"))],
    "other": [(Search, ("next", "on_result", "on_end", "conclude"))],
}


class Stopwatch:
    """Owns the seconds of each part; a part that calls another one does not count meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of a block as that of a part."""
        self._count()
        self._parts.append(name)
        try:
            yield
        finally:
            self._count()
            self._parts.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls count as a part."""

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with self.part(name):
                return function(*arguments, **keywords)

        return call

    def _count(self) -> None:
        now = time.perf_counter()
        if self._parts:
            self.seconds[self._parts[-1]] += now - self._since
        self._since = now


class SimulatedTrials:
    """Starts trials while there is room, and lets each that runs report a row in turn."""

    def __init__(self, search: Search, directory: RunDirectory, watch: Stopwatch) -> None:
        self._search = search
        self._directory = directory
        self._watch = watch
        self._running: dict[str, tuple[Trial, int]] = {}
        self._rng = random.Random(0)
        self._next_drawing = 0.0

    def run(self) -> None:
        """Return when no trial is left."""
        while True:
            while (trial := self._search.next()) is not None:
                self._running[trial.name] = trial, 0
                self._directory.trial_status(trial, Status.RUNNING)
            if not self._running:
                return
            for trial, rows in list(self._running.values()):
                self._report(trial, rows + 1)

    def _report(self, trial: Trial, rows: int) -> None:
        row = self._row(trial, rows)
        decision = self._search.on_result(trial, row, None)
        self._directory.trial_result(trial, row)
        failed = rows == ROWS // 2 and self._rng.random() < FAILING
        self._running[trial.name] = trial, rows
        if row["done"] or failed or decision.verdict is Verdict.STOP:
            del self._running[trial.name]
            error = RecordedError("it was to fail") if failed else None
            ending = self._search.on_end(trial, row["done"] and not failed, error)
            self._directory.trial_status(trial, ending.status, error, ending.message)
        if time.monotonic() >= self._next_drawing:
            self._next_drawing = time.monotonic() + SECONDS_PER_DRAWING
            with self._watch.part("leaderboard"):
                leaderboard(self._search.standings, "benchmark", 100, 30)

    def _row(self, trial: Trial, rows: int) -> dict[str, Any]:
        steps = rows * STEPS_PER_ROW
        reward = -abs(math.log10(trial.experiment.config.lr) + 3) * 10 + rows + self._rng.gauss(0, 1)
        return {
            "training_iteration": rows,
            "timesteps_total": steps,
            "timesteps_this_iter": STEPS_PER_ROW,
            "time_total_s": steps / 1_000,
            "episodes_total": rows,
            "episode_reward_mean": reward,
            "episode_reward_mean_all": reward,
            "trial_name": trial.name,
            "done": rows == ROWS,
            "info": {"learner": {"loss": 0.5}},
        }


def sweep_of(folder: Path, trials: int, num_seeds: int, scheduler: str) -> Sweep:
    """Return a sweep of so many trials."""
    stop = {"timesteps_total": ROWS * STEPS_PER_ROW}
    search = {"scheduler": scheduler, "num_samples": trials // num_seeds, "num_seeds": num_seeds}
    config = {"seed": 1, "lr": {"loguniform": [1e-5, 1e-1]}, "n_step": {"randint": [1, 8]}}
    file = folder / "sweep.yaml"
    file.write_text(
        to_yaml({"many": {"run": "DQN", "env": "CartPole-v1", "stop": stop, "search": search, "config": config}})
    )
    return load_plan([file], options=LoadOptions(is_sweep=True)).sweeps[0]


def measure(trials: int, num_seeds: int, scheduler: str) -> dict[str, Any]:
    """Return the seconds of each part for one sweep."""
    watch = Stopwatch()
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        sweep = sweep_of(folder, trials, num_seeds, scheduler)
        for part, owners in PARTS.items():
            for owner, methods in owners:
                for method in methods:
                    stack.enter_context(patch.object(owner, method, watch.timed(part, getattr(owner, method))))
        stack.enter_context(patch("os.fsync", watch.timed("disk", os.fsync)))
        directory = stack.enter_context(RunDirectory.create(folder / "out", "sweep", None, [], overwrite=True))
        journal = stack.enter_context(Journal(directory.path))
        directory.start([])
        state = SearchState(sweep, make_searcher(sweep))
        state.scheduler.judge = watch.timed("scheduler", state.scheduler.judge)  # type: ignore[method-assign]
        search = Search(state, directory, journal, CAPACITY, trials)
        started = time.perf_counter()
        SimulatedTrials(search, directory, watch).run()
        search.conclude(Status.TERMINATED)
        with watch.part("leaderboard"):
            leaderboard_lines(search.standings)
        total = time.perf_counter() - started
    return {"trials": trials, "total": total, **watch.seconds}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, action="append", help="size of a sweep; repeatable (1000 and 5000)")
    parser.add_argument("--scheduler", choices=["fifo", "asha", "median"], default="asha")
    parser.add_argument("--num-seeds", type=int, default=2)
    args = parser.parse_args()
    if not args.json:
        print(f"{conditions()}\nseconds, {args.scheduler}, {args.num_seeds} seeds per configuration")
    parts = ("total", *PARTS, "scheduler", "leaderboard", "disk")
    table = Table([Column("trials", "trials", 7, ",")] + [Column(part, part, 11, ".2f") for part in parts], args.json)
    for trials in args.trials or [1_000, 5_000]:
        table.add(measure(trials, args.num_seeds, args.scheduler))


if __name__ == "__main__":
    main()
