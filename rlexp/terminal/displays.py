"""Displays of a run or a submitted task: the summary alone (``-q``), JSON, a line for each report.

Also the choice between them. The live picture of a run and the line of a task are in files of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from rlexp.config.keys.trial import Trial
from rlexp.files import to_json
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.trial_files import is_progress
from rlexp.search.standings import Standings
from rlexp.terminal.lines import StatusLine
from rlexp.terminal.summary import standings_as_json, summary_lines
from rlexp.terminal.trial_view import TrialView, progress_words, reward_goal
from rlexp.text import columns_of, count, one_line, score

if TYPE_CHECKING:
    from rlexp.board.servers.board import TaskSummary

_FIRST_GAP_S: Final = 10.0
"""Seconds between the first two lines about an iteration; each later gap is twice as long."""
_LONGEST_GAP_S: Final = 60.0
STOPPING: Final = "stopping: trials save a checkpoint and end; Ctrl-C again ends them at once"


class QuietDisplay:
    """Shows the outcome only; the plain and the live display add the events before it."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._run_directory = Path()
        self._stop_requested = False
        self._standings: Standings | None = None

    @property
    def run_directory(self) -> Path | None:
        """The run's directory; None before it has begun."""
        return None if self._run_directory == Path() else self._run_directory

    def _show_nothing(self, *arguments: Any, **named: Any) -> None:
        """Do what this display does at all events but the last one."""

    on_phase = on_trial_start = on_result = on_note = on_trial_end = tick = _show_nothing
    on_submitted = on_task = on_evaluation = on_leave = _show_nothing

    def follow(self, standings: Standings) -> None:
        self._standings = standings

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        self._run_directory = run_directory

    def on_stop_request(self) -> None:
        self._stop_requested = True

    def finish(self, run: RunRecord) -> None:
        lines = summary_lines(run, self._run_directory, self._standings, columns_of(self._stdout))
        print(*lines, sep="\n", file=self._stdout, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing, as there is nothing to restore."""


class JsonDisplay(QuietDisplay):
    """Prints events: ``start``, ``trial_start``, ``result``, ``trial_end``, ``note``, ``stopping`` and ``end``.

    For a submitted task also ``submitted``, ``task``, ``evaluation`` and ``left``. Phases are not events, as programs
    do not need them.
    """

    def __init__(self, stdout: TextIO) -> None:
        super().__init__(stdout)
        self._shown_task: tuple[Any, ...] = ()

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        super().start(run_directory, trials)
        self._print("start", directory=run_directory, trials=[trial.name for trial in trials])

    def on_trial_start(self, trial: Trial) -> None:
        self._print("trial_start", trial=trial.name)

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        self._print("result", trial=trial.name, result=row)

    def on_note(self, trial: Trial | None, text: str) -> None:
        self._print("note", trial=trial.name if trial else None, text=text)

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        self._print("trial_end", trial=trial.name, status=status, message=message)

    def tick(self) -> None:
        if self._stop_requested:
            self._stop_requested = False
            self._print("stopping")

    def on_submitted(self, task_id: str) -> None:
        self._print("submitted", task=task_id)

    def on_task(self, task: TaskSummary) -> None:
        shown = (task.status, task.trainer, task.taken, task.weights_version)
        if shown != self._shown_task:
            self._shown_task = shown
            self._print("task", **task_as_json(task))

    def on_evaluation(self, version: int, figures: Mapping[str, Any]) -> None:
        self._print("evaluation", num_updates=version, evaluation=figures)

    def on_leave(self, task_id: str, board: str) -> None:
        self._print("left", task=task_id, board=board)

    def finish(self, run: RunRecord) -> None:
        sweep = {} if self._standings is None else {"configurations": standings_as_json(self._standings)}
        if self._standings is not None and self._standings.confirmation is not None:
            sweep["confirmation"] = standings_as_json(self._standings.confirmation)
        self._print("end", directory=self._run_directory, run=asdict(run), **sweep)

    def _print(self, event: str, **fields: Any) -> None:
        print(to_json({"event": event, **fields}), file=self._stdout, flush=True)


def task_as_json(task: TaskSummary) -> dict[str, Any]:
    """Return a line of the list of tasks, by the names in ``rlexp tasks --json``."""
    return {
        "id": task.id,
        "name": task.name,
        "status": task.status,
        "reason": task.reason,
        "trainer": task.trainer,
        "seats": task.num_seats,
        "taken": list(task.taken),
        "weights_version": task.weights_version,
        "is_submitted": task.is_submitted,
        "age_s": round(task.age_s, 3),
        "figures": task.figures,
    }


class PlainDisplay(QuietDisplay):
    """Prints a line on stderr for each event, the summary on stdout."""

    def __init__(self, stdout: TextIO, stderr: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stdout)
        self._line = StatusLine(stderr)
        self._clock = clock
        self._progress_due: dict[str, tuple[float, float]] = {}
        """When the next line of a trial's progress is due, and the seconds from it to the one after that."""
        self._views: dict[str, TrialView] = {}
        self._phases_said: set[tuple[str, str]] = set()
        self._stop_told = False
        self._started: set[str] = set()

    def on_phase(self, trial: Trial | None, text: str) -> None:
        """Print the phase; for a trial with results, only the first one after a result.

        The progress of an iteration is printed now and then, and less often the longer the iteration lasts.
        """
        view = self._views.get(trial.name) if trial else None
        if trial is not None:
            self._say_start(trial)
            if is_progress(text):
                self._say_progress(trial, text)
                return
        if view is not None and view.row:
            if view.phase is not None:
                return
            view.phase = text
        self._say_of(trial, text)
        if trial is not None:
            self._phases_said.add((trial.name, text))

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        super().start(run_directory, trials)
        self._views = {trial.name: TrialView(trial) for trial in trials}
        said = f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'}"
        if self._standings is not None:
            said = f"up to {self._standings.number_of_configurations} configurations"
        self._line.print_above(f"{said} in {run_directory}")

    def on_trial_start(self, trial: Trial) -> None:
        self._views.setdefault(trial.name, TrialView(trial)).begin(time.monotonic())
        self._say_start(trial)

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        view = self._views[trial.name]
        view.add(row)
        self._progress_due.pop(trial.name, None)
        self._line.print_above(f"{trial.name}  {report(view)}")

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Print it, unless it was printed as the phase of its trial."""
        if trial is not None and (trial.name, text) in self._phases_said:
            self._phases_said.remove((trial.name, text))
        else:
            self._say_of(trial, text)

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        self._started.discard(trial.name)
        self._line.print_above(f"{trial.name} {status}{f': {one_line(message)}' if message else ''}")

    def tick(self) -> None:
        if self._stop_requested and not self._stop_told:
            self._stop_told = True
            self._line.print_above(STOPPING)

    def _say_of(self, trial: Trial | None, text: str) -> None:
        self._line.print_above(f"{trial.name}: {one_line(text)}" if trial else one_line(text))

    def _say_progress(self, trial: Trial, text: str) -> None:
        now_s = self._clock()
        due_s, gap_s = self._progress_due.get(trial.name, (now_s, _FIRST_GAP_S))
        if now_s >= due_s:
            self._progress_due[trial.name] = now_s + gap_s, min(2 * gap_s, _LONGEST_GAP_S)
            self._say_of(trial, text)

    def _say_start(self, trial: Trial) -> None:
        """Print once that a trial starts: its process may report a phase before Tune reports the start."""
        if trial.name not in self._started:
            self._started.add(trial.name)
            self._line.print_above(f"{trial.name} starts")


def report(view: TrialView) -> str:
    """Return the newest row of a trial as one line."""
    row = view.row
    parts = [
        f"iteration {count(row.get('training_iteration'))}",
        f"steps {count(row.get('timesteps_total'))}{_progress(view)}",
        f"reward {score(row.get('episode_reward_mean'))}{reward_goal(view)}",
        f"sampled {count(row.get('info/sample_throughput'))}/s",
        f"trained {count(row.get('info/train_throughput'))}/s",
        f"bottleneck {row.get('info/bottleneck', '-')}",
    ]
    if "info/board/actors" in row:
        actors, seats = (count(row.get(f"info/board/{name}")) for name in ("actors", "seats"))
        parts.append(f"board {actors}/{seats} actors {count(row.get('info/board/fragments_per_s'))} fragments/s")
    return "  ".join(parts)


def _progress(view: TrialView) -> str:
    progress = view.progress(time.monotonic())
    return "" if progress is None else f" ({', '.join(progress_words(progress, bool(view.undecided)))})"


def choose_display(
    stdout: TextIO, stderr: TextIO, environment: Mapping[str, str], *, json: bool, quiet: bool
) -> QuietDisplay:
    """Return the display for ``--json``, ``-q``, or else the live one if there is a terminal for it.

    Both streams must be terminals, as nobody watches the screen if the summary goes to a file. ``TERM=dumb`` asks for
    plain lines; ``NO_COLOR``, unless it is empty, for a display without colours.
    """
    if json:
        return JsonDisplay(stdout)
    if quiet:
        return QuietDisplay(stdout)
    if stdout.isatty() and stderr.isatty() and environment.get("TERM") not in ("dumb", "unknown"):
        from rich.console import Console

        from rlexp.terminal.live import LiveDisplay

        no_color = bool(environment.get("NO_COLOR"))  # Rich before 14 obeys an empty one too
        return LiveDisplay(stdout, Console(file=stderr, highlight=False, no_color=no_color))
    return PlainDisplay(stdout, stderr)
