"""Runs a plan's trials through Tune: queues them, records what they report, and ends in good order."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from rlexp.config.trial import Trial
from rlexp.tuning.display import Display
from rlexp.tuning.find_checkpoint import starting_point
from rlexp.tuning.recorders import TrialRecorder
from rlexp.tuning.run_directory import RunDirectory, trial_parameters
from rlexp.tuning.run_record import Status, TrialError
from rlexp.tuning.stop_request import StopRequest
from rlexp.tuning.trainable import ERROR_FILE, STOP_FILE, Assignment, ExperimentTrainable, placement

TUNE_FOLDER = ".tune"
"""Tune's own files, below the run's directory. They hold pickles: nothing of ours reads them."""
SAVE_TIMEOUT_S = 7.0
"""How long trials may take to save and end after Ctrl-C before Tune ends them."""


def run_trials(trials: Sequence[Trial], directory: RunDirectory, display: Display, request: StopRequest) -> Status:
    """Run every trial to its end; return how the run as a whole ended. Ray must be up.

    Raises KeyboardInterrupt when a second signal asks for an end at once.
    """
    stop_file = directory.path / STOP_FILE
    stop_file.unlink(missing_ok=True)
    events = TrialEvents(trials, directory, display, request)
    tuner = make_tuner(trials, directory, events)
    request.trials_may_save(stop_file)
    try:
        tuner.fit()
    finally:
        events.close()
        shutil.rmtree(directory.path / TUNE_FOLDER, ignore_errors=True)
        stop_file.unlink(missing_ok=True)
    return events.conclude()


def make_tuner(trials: Sequence[Trial], directory: RunDirectory, events: TrialEvents) -> tune.Tuner:
    """Return a Tuner whose trials are exactly ``trials``, in their order, each with its own bundles."""
    assignments = [assignment_of(trial, directory) for trial in trials]
    trainable = tune.with_resources(
        tune.with_parameters(ExperimentTrainable, assignments=assignments),
        lambda config: placement(trials[config["trial"]].experiment),
    )
    return tune.Tuner(
        trainable,
        param_space={"trial": tune.grid_search(list(range(len(trials))))},
        tune_config=tune.TuneConfig(trial_name_creator=_name_for_tune, trial_dirname_creator=_name_for_tune),
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(directory.path.resolve()),
            callbacks=[events],
            stop=EndWhenSaved(events),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )


def assignment_of(trial: Trial, directory: RunDirectory) -> Assignment:
    """Return what the process of ``trial`` is told; its time budget begins now."""
    budget_s = trial.experiment.time_budget_s
    return Assignment(
        trial=trial,
        directory=directory.trial_directory(trial).resolve(),
        imports=tuple(directory.record.imports),
        restore=starting_point(trial),
        deadline_s=None if budget_s is None else time.time() + budget_s,
    )


class TrialEvents(tune.Callback):
    """Takes what Tune tells about the trials to the recorders, the run's directory and the display."""

    def __init__(
        self, trials: Sequence[Trial], directory: RunDirectory, display: Display, request: StopRequest
    ) -> None:
        self.request = request
        self.training: set[str] = set()
        """Names of the trials whose process trains, so that it can save."""
        self._trials = tuple(trials)
        self._directory = directory
        self._display = display
        self._recorders: dict[str, TrialRecorder] = {}
        self._stopped: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        """Tune pickles its callbacks with its state, which nobody restores: leave an empty one."""
        return (tune.Callback, ())

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        self._display.tick()

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        ours = self._ours(trial)
        trial.max_failures = ours.experiment.max_failures
        self._recorder(ours)
        self._directory.trial_status(ours, Status.RUNNING)
        self._display.on_trial_start(ours)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        ours, row = self._ours(trial), result["row"]
        self.training.add(ours.name)
        self._recorder(ours).record(row)
        self._directory.trial_result(ours, row)
        if result["checkpoint"] is not None:
            self._directory.trial_checkpoint(ours, Path(result["checkpoint"]), row["episode_reward_mean"])
        if result["stopped"]:
            self._stopped.add(ours.name)
        self._display.on_result(ours, row)

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        ours = self._ours(trial)
        finished = ours.name in self.training and ours.name not in self._stopped
        self._end(ours, Status.TERMINATED if finished else Status.STOPPED, None)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        ours = self._ours(trial)
        self._end(ours, Status.ERROR, self._error_of(ours))

    def conclude(self) -> Status:
        """Mark the trials that never ran or never ended; return how the run as a whole ended."""
        for trial in self._trials:
            if self._directory.record.trial(trial.name).status in (Status.PENDING, Status.RUNNING):
                self._end(trial, Status.STOPPED, None)
        statuses = {record.status for record in self._directory.record.trials}
        for worst in (Status.ERROR, Status.STOPPED):
            if worst in statuses:
                return worst
        return Status.TERMINATED

    def close(self) -> None:
        """Close every recorder; idempotent."""
        for recorder in self._recorders.values():
            recorder.close()

    def _ours(self, trial: TuneTrial) -> Trial:
        index: int = trial.config["trial"]
        return self._trials[index]

    def _end(self, trial: Trial, status: Status, error: TrialError | None) -> None:
        self.training.discard(trial.name)
        if trial.name in self._recorders:
            self._recorders.pop(trial.name).close()
        self._directory.trial_status(trial, status, error)
        self._display.on_trial_end(trial, status, error.summary if error else None)

    def _recorder(self, trial: Trial) -> TrialRecorder:
        if trial.name not in self._recorders:
            directory = self._directory.trial_directory(trial)
            self._recorders[trial.name] = TrialRecorder(directory, trial_parameters(trial))
        return self._recorders[trial.name]

    def _error_of(self, trial: Trial) -> TrialError:
        path = self._directory.trial_directory(trial) / ERROR_FILE
        if not path.exists():
            return TrialError("the trial's process died (killed, or out of memory)")
        summary, _, _ = path.read_text(encoding="utf-8").partition("\n")
        return TrialError(summary, str(path.relative_to(self._directory.path)))


class EndWhenSaved(tune.Stopper):
    """Ends the experiment once a stop was requested and no trial is left that could still save."""

    def __init__(self, events: TrialEvents) -> None:
        self._events = events
        self._deadline_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """See ``TrialEvents.__reduce__``."""
        return (tune.stopper.NoopStopper, ())

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Trials know themselves when to stop."""
        return False

    def stop_all(self) -> bool:
        """Return whether everything may end now."""
        if not self._events.request.requested:
            return False
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + SAVE_TIMEOUT_S
        return not self._events.training or time.monotonic() > self._deadline_s


def _name_for_tune(trial: TuneTrial) -> str:
    return f"trial-{trial.config['trial']:05d}"
