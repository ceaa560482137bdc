"""The Trainable: one trial for Tune, around an agent, with the errors that it stores among its files."""

from __future__ import annotations

import faulthandler
import gc
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.exceptions import RayTaskError

from rlexp.agents.registry import agent_class
from rlexp.board.trainer.link import TaskReports
from rlexp.board.trainer.source import BoardSeats
from rlexp.board.trainer.trial import board_link
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.fields import AUTO
from rlexp.errors import RlexpError
from rlexp.processes.threads import few_collections
from rlexp.rollout.user_callbacks import announce_checkpoint
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import checkpoint_directory
from rlexp.runs.rows import checkpoint_row
from rlexp.runs.trial_files import TRAINING, Poll, TrialFiles, write_video
from rlexp.text import masked
from rlexp.tuning.assignment import ASSIGNMENT, Assignment, BoardSecrets, files_of
from rlexp.tuning.stop_condition import CheckpointEvaluation, RowOrigin, iteration_bounds, row_notes, writes_checkpoint
from rlexp.user_code.finding import named

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent
    from rlexp.agents.torch.process import ProcessState
    from rlexp.board.trainer.link import BoardLink


class KeptErrors:
    """A context that stores the error of its body among the files of a trial, and re-raises it."""

    def __init__(self, files: TrialFiles, on_error: Callable[[], None]) -> None:
        self._files, self._on_error = files, on_error

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._on_error()
            self._files.write_error(f"{summary(error)}\n\n{''.join(traceback.format_exception(error))}")


def summary(error: BaseException) -> str:
    """Return an error in one line: the first cause, not the layers that carried it."""
    if isinstance(error, RayTaskError):
        error = error.cause or error
    if isinstance(error, RlexpError):
        return error.message + (f" ({error.hint})" if error.hint else "")
    return named(error)


PROGRESS_PERIOD_S = 5.0
"""How often a long iteration says how far it is."""
STDERR = 2
END_TIMEOUT_S = 10.0
"""Seconds that a trial may take to close its envs before its process ends, if the process would run the next trial."""


class ExperimentTrainable(tune.Trainable):
    """Trains one trial after the other; Tune decides when and where.

    Checkpoints are ours, in the trial's directory, which TrialFiles reads and writes. A trial that Tune restarts after
    a failure continues from the newest valid one there. Tune itself stores nothing. After a failure the process ends;
    after any other end of a trial, Tune may give it the next one with the same resources.
    """

    _agent: Agent[Any] | None = None
    _files: TrialFiles
    _reports: TaskReports | None = None
    """Reports to its board; None without one."""
    _next: Assignment | None = None
    """The trial that begins with the next call of ``train``."""
    _process_state: ProcessState | None = None
    """The state of this process before its first trial."""
    _secrets: Mapping[str, str] = os.environ
    """The passwords and keys of its board, by variable."""

    def setup(self, config: dict[str, Any]) -> None:
        """Store the assignment, ``config[ASSIGNMENT]``; Tune's own config has nothing else.

        The trial begins with the first call of ``train``, so that all failures happen there.
        """
        self._next = config[ASSIGNMENT]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End the previous trial, and store the assignment of the next one.

        If that trial cannot be ended, the process ends, and the next trial gets a new one.
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

    def take_secrets(self, secrets: BoardSecrets) -> None:
        """Use these for the board of the assigned trial, instead of this machine's environment."""
        self._secrets = secrets.variables
        if secrets.is_successor and self._next is not None and self._next.task is not None:
            self._next = replace(self._next, task=self._next.task.of_successor())

    def train(self) -> Any:
        """Train for one iteration; Tune calls it, and it calls ``step``."""
        self.begin()
        return super().train()  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Build the agent of the last assigned trial, unless it has begun."""
        if self._next is None:
            return
        self._assignment, self._next = self._next, None
        self._experiment = self._assignment.trial.experiment
        self._last_row: dict[str, Any] = {}
        """The row of the checkpoint from which it began, then of each iteration."""
        self._events: list[str] = []
        self._resumed_row: dict[str, Any] | None = None
        self._files = files_of(self._assignment)
        with self._errors_kept():
            self._agent = self._make_agent()
        self._evaluation = CheckpointEvaluation(
            self._agent, self._experiment.checkpoint_evaluation_episodes, self._should_stop, self._report_evaluation
        )

    def step(self) -> dict[str, Any]:
        assert self._agent is not None
        with self._errors_kept():
            self._progress_poll = Poll(PROGRESS_PERIOD_S)
            self._progress_poll.is_due()  # the first time is a period later
            bounds = iteration_bounds(self._experiment.stop, self._assignment.milestones, self._last_row)
            row = self._agent.train(self._should_stop, self._report_evaluation, bounds)
            stopped, over_time = self._files.requests().stop, self._is_over_time()
            ended = self._end_reason(over_time)
            reason = ended or self._evaluation.end_reason(self._experiment.stop, row)
            done = stopped or reason is not None
            moves = self._files.requests().move
            row |= {"done": done, **self._origin.facts(row)}
            self._events += row_notes(self._experiment, row, self._last_row)
            milestone = writes_checkpoint(self._assignment.milestones, self._last_row, row)
            self._last_row = row
            checkpoint = self._save_when_due(row, done, stopped or ended or moves, milestone)
            self._evaluation.release()
            self._report_to_board(row, stopped, moves)
            events, self._events = [*self._events, *self._agent.drain_events()], []
        resumed_row, self._resumed_row = self._resumed_row, None
        self._files.end_phases()
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
        if hasattr(self, "_files"):  # a trial began
            self._files.close()

    def _make_agent(self) -> Agent[Any]:
        self._files.write_phase("loading PyTorch")
        with few_collections():
            make_agent = agent_class(self._experiment)
            self._restore_process()
        config = self._experiment.config
        assert config.seed is not None  # a plan gives every trial one
        own, aside = self._files.newest()
        board = board_link(self._assignment.task, self._experiment.name, self._secrets)
        own = self._newer_on_board(board, own)
        path = own or self._assignment.restore
        if path is not None:
            self._files.write_phase(f"reading {path.name}")
            path = own or self._files.fetch(path)
        checkpoint = read_checkpoint(path) if path is not None else None
        self._events += aside
        row = checkpoint_row(checkpoint.path, checkpoint.metadata) if checkpoint is not None else None
        if own is not None:
            self._events.append(f"continues from {own.name}")
            self._resumed_row = row
        self._last_row = row or {}
        self._origin = RowOrigin(self._assignment.trial.name, row)
        self._files.write_phase(f"creating {processes_of(config)}")
        modules = self._assignment.modules
        seats = None if board is None else BoardSeats(board)
        agent = make_agent(self._experiment.env, config, RayTaskPool(), config.seed, checkpoint, modules, seats)
        self._files.write_phase(TRAINING)
        return agent

    def _restore_process(self) -> None:
        """Remove what earlier trials left in the process, both memory and state."""
        from rlexp.agents.torch.process import ProcessState  # it loads torch

        if self._process_state is None:
            self._process_state = ProcessState()
            gc.freeze()  # imports stay, so later collections need not check them
            return
        gc.collect()
        self._process_state.restore()

    def _should_stop(self) -> bool:
        """Return whether the iteration must end now; events of long iterations are shown before their end."""
        assert self._agent is not None
        events = self._agent.drain_events()
        if events:
            self._events += events
            self._files.write_phase(events[-1])
        elif self._progress_poll.is_due() and (progress := self._agent.sampling_progress()):
            self._files.write_phase(progress)
        is_over = self._end_reason(self._is_over_time()) is not None
        return any(self._files.requests()) or is_over

    def _report_evaluation(self, num_ended: int, num_env_steps: int) -> None:
        self._files.write_phase(f"evaluating: {num_ended} episodes ended, {num_env_steps:,} env steps")

    def _newer_on_board(self, board: BoardLink | None, own: Path | None) -> Path | None:
        """Return the checkpoint that an earlier trainer of the task left on its board, if it is newer than ``own``.

        From now on the trial reports to the board.
        """
        if board is None:
            self._reports = None
            return own
        keys = self._experiment.config.board_keys
        assert keys is not None  # others cannot be joined
        self._reports = TaskReports(board, keys.recovery_period_s)
        return self._reports.recovery(self._files.folder, own) or own

    def _report_to_board(self, row: dict[str, Any], stopped: bool, moves: bool) -> None:
        """Tell the board a row, and what others need to continue or to have the result."""
        reports, agent = self._reports, self._agent
        if reports is None:
            return
        assert agent is not None
        reports.add_row(row)

        def save(folder: Path) -> Path:
            path = checkpoint_directory(folder, row["training_iteration"])
            return agent.save(path, self._metadata(row), with_replay=False)

        task = self._assignment.task
        if moves or (stopped and task is not None and task.file):
            reports.hand_over(save)
        elif row["done"]:
            reports.end(save, "it was stopped" if stopped else "")
        else:
            reports.save_when_due(save)
        self._events += reports.drain_events()

    def _end_reason(self, over_time: bool) -> str | None:
        """Return why the trial is over for a reason other than its ``stop``; None if there is none."""
        if self._reports is not None and self._reports.is_cancelled:
            return "its task was cancelled"
        return "its time_budget_s is over" if over_time else None

    def _save_when_due(self, row: dict[str, Any], done: bool, cut_short: object, milestone: bool) -> str | None:
        """Write a checkpoint when due: at its period, at the end if asked for, and if a person or time ends it."""
        experiment = self._experiment
        iteration = row["training_iteration"]
        periodic = experiment.checkpoint_freq > 0 and iteration % experiment.checkpoint_freq == 0
        if not (periodic or cut_short or milestone or (done and experiment.checkpoint_at_end)):
            return None
        assert self._agent is not None
        self._files.check()
        if not cut_short:
            self._evaluation.add_figures(row)
        path = self._agent.save(checkpoint_directory(self._files.folder, iteration), self._metadata(row))
        announce_checkpoint(self._agent.callbacks, path, row)
        kept = self._files.put_checkpoint(path)
        if experiment.config.monitor:
            pictures, fps = self._agent.film()
            self._files.put_video(f"iteration_{iteration:06d}.mp4", lambda path: write_video(path, pictures, fps))
        self._remove_superseded()
        return kept

    def _remove_superseded(self) -> None:
        count, milestones = self._experiment.keep_checkpoints_num, self._assignment.milestones
        is_copied = milestones is not None and milestones.writes_checkpoint  # by other trials of its population
        if count is not None and not (count == AUTO and is_copied):
            self._files.keep_best(count, self._experiment.checkpoint_score_attr)

    def _metadata(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata of a checkpoint."""
        experiment = self._experiment
        return {
            "experiment": experiment.model_dump(mode="json") | {"storage": masked(experiment.storage)},
            "imports": list(self._assignment.modules.imports),
            "module_folders": list(self._assignment.modules.folders),
            "metrics": row,
        }

    def _is_over_time(self) -> bool:
        deadline_s = self._assignment.deadline_s
        return deadline_s is not None and time.time() >= deadline_s

    def _errors_kept(self) -> KeptErrors:
        return KeptErrors(self._files, self._fail_on_board)

    def _fail_on_board(self) -> None:
        if self._reports is not None:
            self._reports.fail()


def processes_of(config: CommonConfig) -> str:
    """Return the processes for ``config`` before the first step, in words."""
    number, learners = config.num_workers, config.learner_processes
    workers = "the environments" if number == 0 else f"{number} {'worker' if number == 1 else 'workers'}"
    return f"{learners.number} learners and {workers}" if learners else workers
