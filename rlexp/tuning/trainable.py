"""The Trainable: one trial as Tune sees it, around an agent."""

from __future__ import annotations

import faulthandler
import gc
import os
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.exceptions import RayTaskError

from rlexp.agents.registry import agent_class
from rlexp.checkpoint import checkpoint_directory, newest_with_damaged_aside, read_checkpoint
from rlexp.config.keys.common import CommonConfig
from rlexp.errors import RlexpError, TrialError
from rlexp.runs.checkpoints import keep_best
from rlexp.runs.last_row import checkpoint_row
from rlexp.runs.phase_file import TRAINING, end_phases, write_phase
from rlexp.runs.run_lock import OpenFolder
from rlexp.runs.videos import FOLDER, write_video
from rlexp.task_pool import RayTaskPool
from rlexp.tuning.assignment import ASSIGNMENT, MOVE_FILE, STOP_FILE, Assignment
from rlexp.tuning.stop_condition import iteration_bounds, reached, writes_checkpoint

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent
    from rlexp.agents.process_state import ProcessState

STDERR = 2
ERROR_FILE = "error.txt"
"""In the trial's directory: the error in one line, then the traceback."""
STOP_POLL_S = 0.2
"""How often a trial looks for it."""
END_TIMEOUT_S = 10.0
"""How long a trial may take to close its envs before its process ends, where the process would run the next trial."""


class ExperimentTrainable(tune.Trainable):
    """Trains one trial after the other; Tune decides when and where.

    Checkpoints are ours, in the trial's directory: a trial that Tune starts again after a failure
    continues from the newest valid one there. Tune itself stores nothing. After a failure the process ends; after any
    other end of a trial Tune may give it the next one that needs the same resources.
    """

    _agent: Agent[Any] | None = None
    _folder: OpenFolder
    _next: Assignment | None = None
    """The trial that begins with the next call of ``train``."""
    _process_state: ProcessState | None = None
    """Of this process before its first trial."""

    def setup(self, config: dict[str, Any]) -> None:
        """Keep the assignment, ``config[ASSIGNMENT]``: Tune's own config has nothing else.

        The trial begins with the first call of ``train``, so that all that can fail fails there.
        """
        self._next = config[ASSIGNMENT]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End the trial before, and keep the assignment of the next one.

        The process ends where that trial cannot be ended: then the next one gets a new process.
        """
        faulthandler.dump_traceback_later(END_TIMEOUT_S, exit=True, file=STDERR)
        try:
            self.cleanup()
        except Exception:
            traceback.print_exc()
            os._exit(1)
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.setup(new_config)
        return True

    def train(self) -> Any:
        """Train for one iteration; Tune calls it, and it calls ``step``."""
        self.begin()
        return super().train()  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Build the agent of the trial that was assigned last, unless it has begun."""
        if self._next is None:
            return
        self._assignment, self._next = self._next, None
        self._experiment = self._assignment.trial.experiment
        self._directory = self._assignment.directory
        self._last_row: dict[str, Any] = {}
        """Of the checkpoint that it began from, then of each iteration."""
        self._stop_poll = StopFilePoll(self._directory.parent / STOP_FILE)
        self._move_poll = StopFilePoll(self._directory / MOVE_FILE)
        self._events: list[str] = []
        self._resumed_row: dict[str, Any] | None = None
        self._folder = OpenFolder(self._directory)
        with self._errors_kept():
            self._agent = self._make_agent()

    def step(self) -> dict[str, Any]:
        assert self._agent is not None
        with self._errors_kept():
            bounds = iteration_bounds(self._experiment.stop, self._assignment.milestones, self._last_row)
            row = self._agent.train(self._should_stop, self._report_evaluation, bounds)
            stopped, over_time = self._stop_poll.stop_requested(), self._is_over_time()
            reason = "its time_budget_s is over" if over_time else reached(self._experiment.stop, row)
            done = stopped or reason is not None
            moves = self._move_poll.stop_requested()
            now = datetime.now().astimezone()
            row |= {
                "done": done,
                "date": now.isoformat(timespec="seconds"),
                "timestamp": int(now.timestamp()),
                "trial_name": self._assignment.trial.name,
            }
            milestone = writes_checkpoint(self._assignment.milestones, self._last_row, row)
            self._last_row = row
            checkpoint = self._save_when_due(row, done, stopped or over_time or moves, milestone)
            events, self._events = [*self._events, *self._agent.drain_events()], []
        resumed_row, self._resumed_row = self._resumed_row, None
        end_phases(self._directory)
        return {
            "row": row,
            "resumed_row": resumed_row,
            "events": events,
            "checkpoint": checkpoint,
            "milestone": milestone,
            "moves": moves,
            "stopped": stopped,
            "reason": reason,
            "done": done,
        }

    def cleanup(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.stop()
        if hasattr(self, "_folder"):  # a trial began
            self._folder.close()

    def _make_agent(self) -> Agent[Any]:
        write_phase(self._directory, "loading PyTorch")
        make_agent = agent_class(self._experiment)
        self._restore_process()
        config = self._experiment.config
        assert config.seed is not None  # a plan gives every trial one
        own, aside = newest_with_damaged_aside(self._directory)
        path = own or self._assignment.restore
        if path is not None:
            write_phase(self._directory, f"reading {path.name}")
        checkpoint = read_checkpoint(path) if path is not None else None
        self._events += aside
        row = checkpoint_row(checkpoint.path, checkpoint.metadata) if checkpoint is not None else None
        if own is not None:
            self._events.append(f"continues from {own.name}")
            self._resumed_row = row
        self._last_row = row or {}
        write_phase(self._directory, f"creating {processes_of(config)}")
        agent = make_agent(
            self._experiment.env, config, RayTaskPool(), config.seed, checkpoint, self._assignment.modules
        )
        write_phase(self._directory, TRAINING)
        return agent

    def _restore_process(self) -> None:
        """Let nothing of the trials before be left in the process, neither memory nor state."""
        from rlexp.agents.process_state import ProcessState  # it loads torch

        if self._process_state is None:
            self._process_state = ProcessState()
            gc.freeze()  # what is imported stays: later collections need not look at it
            return
        gc.collect()
        self._process_state.restore()

    def _should_stop(self) -> bool:
        """Return whether the iteration must end now; events of long iterations are shown before their end."""
        assert self._agent is not None
        events = self._agent.drain_events()
        if events:
            self._events += events
            write_phase(self._directory, events[-1])
        return self._stop_poll.stop_requested() or self._move_poll.stop_requested() or self._is_over_time()

    def _report_evaluation(self, num_ended: int, num_env_steps: int) -> None:
        wanted = self._experiment.config.evaluation_num_episodes
        text = f"evaluating: {num_ended} of {wanted} episodes ended, {num_env_steps:,} env steps"
        write_phase(self._directory, text)

    def _save_when_due(self, row: dict[str, Any], done: bool, cut_short: bool, milestone: bool) -> str | None:
        """Write a checkpoint at its period, at the end where asked for, and always where a person or time ends it."""
        experiment = self._experiment
        iteration = row["training_iteration"]
        periodic = experiment.checkpoint_freq > 0 and iteration % experiment.checkpoint_freq == 0
        if not (periodic or cut_short or milestone or (done and experiment.checkpoint_at_end)):
            return None
        assert self._agent is not None
        if not self._folder.is_in_place:  # another run's may be at its path
            raise TrialError(f"{self._directory} was deleted or moved while the trial ran")
        directory = checkpoint_directory(self._directory, iteration)
        metadata = {
            "experiment": experiment.model_dump(mode="json"),
            "imports": list(self._assignment.modules.imports),
            "module_folders": list(self._assignment.modules.folders),
            "metrics": row,
        }
        path = self._agent.save(directory, metadata)
        if experiment.config.monitor:
            pictures, fps = self._agent.film()
            (self._directory / FOLDER).mkdir(exist_ok=True)
            write_video(self._directory / FOLDER / f"iteration_{iteration:06d}.mp4", pictures, fps)
        if experiment.keep_checkpoints_num is not None:
            keep_best(self._directory, experiment.keep_checkpoints_num, experiment.checkpoint_score_attr)
        return str(path)

    def _is_over_time(self) -> bool:
        deadline_s = self._assignment.deadline_s
        return deadline_s is not None and time.time() >= deadline_s

    def _errors_kept(self) -> ErrorFile:
        return ErrorFile(self._folder, self._directory / ERROR_FILE)


class ErrorFile:
    """A context that keeps the error of its body in a file of a folder, and lets it pass."""

    def __init__(self, folder: OpenFolder, path: Path) -> None:
        self._folder = folder
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and self._folder.is_in_place:
            self._path.write_text(f"{summary(error)}\n\n{''.join(traceback.format_exception(error))}", encoding="utf-8")


class StopFilePoll:
    """Looks for the stop file, but not more often than every STOP_POLL_S; once seen, it stays seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._requested = False
        self._next_look_s = 0.0

    def stop_requested(self) -> bool:
        """Return whether the run was asked to stop."""
        now = time.monotonic()
        if not self._requested and now >= self._next_look_s:
            self._next_look_s = now + STOP_POLL_S
            self._requested = self._path.exists()
        return self._requested


def summary(error: BaseException) -> str:
    """Return an error in one line: the first cause, not the layers that carried it."""
    if isinstance(error, RayTaskError):
        error = error.cause or error
    if isinstance(error, RlexpError):
        return error.message + (f" ({error.hint})" if error.hint else "")
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def processes_of(config: CommonConfig) -> str:
    """Return what is made of ``config`` before the first step."""
    number = config.num_workers
    workers = "the environments" if number == 0 else f"{number} {'worker' if number == 1 else 'workers'}"
    learners = config.learner_processes
    return f"{learners.number} learners and {workers}" if learners else workers
