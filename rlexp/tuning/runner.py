"""Runs trials through Tune: queues them, records what they report, and ends in good order."""

from __future__ import annotations

import time
from contextlib import closing

from ray import tune
from ray.tune.error import TuneError
from ray.tune.experiment import Trial as TuneTrial

from rlexp.config.keys.trial import Trial
from rlexp.display import Display
from rlexp.runs.find_checkpoint import starting_point
from rlexp.runs.phase_file import end_phases
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.run_record import Status
from rlexp.search.trial_source import TrialSource
from rlexp.sessions.ray_session import RaySession
from rlexp.tuning.stop_request import StopRequest
from rlexp.tuning.trainable import ASSIGNMENT, STOP_FILE, Assignment, ExperimentTrainable, placement
from rlexp.tuning.tune_callbacks import TrialEvents, VerdictStopper
from rlexp.tuning.tune_scheduler import PausingScheduler, TrialQueue

TUNE_FOLDER = "tune"
"""Tune's own files, in the session's folder. They hold pickles: nothing of ours reads them."""


def run_trials(
    feed: TrialSource, directory: RunDirectory, display: Display, request: StopRequest, session: RaySession
) -> Status:
    """Run every trial that ``feed`` gives to its end; return how the run as a whole ended. ``session`` is entered.

    Raises KeyboardInterrupt when a second signal asks for an end at once, and RayStoppedError or LostDirectoryError
    when the run lost what it needs. Trials that have not ended by then are recorded as stopped.
    """
    stop_file = directory.path / STOP_FILE
    stop_file.unlink(missing_ok=True)
    events = TrialEvents(feed, directory, display, request)

    def run_tune() -> None:
        make_tuner(feed, directory, events, session).fit()

    request.trials_may_save(stop_file)
    try:
        session.call(run_tune, directory.check, request.check_deadline)
    except TuneError as error:
        raise _first_cause(error) from None
    finally:
        events.leave()
        session.leave()
        with closing(events):
            if not directory.is_lost:
                status = events.conclude()  # of trials that Tune left as they were, while their recorders are open
                stop_file.unlink(missing_ok=True)
    return status


def _first_cause(error: BaseException) -> BaseException:
    """Return what one of our functions raised when Tune called it; Tune's own error has only the text of that."""
    while isinstance(error, TuneError) and error.__context__ is not None:
        error = error.__context__
    return error


def make_tuner(feed: TrialSource, directory: RunDirectory, events: TrialEvents, session: RaySession) -> tune.Tuner:
    """Return a Tuner whose trials are exactly those of ``feed``, in their order, each with its own bundles."""

    def config_of(trial: Trial) -> dict[str, Assignment]:
        return {ASSIGNMENT: assignment_of(trial, directory, feed)}

    trainable = tune.with_resources(ExperimentTrainable, lambda config: placement(config[ASSIGNMENT].trial.experiment))
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            num_samples=-1,  # as many as there are
            search_alg=TrialQueue(feed, events, config_of),
            scheduler=PausingScheduler(feed, events, config_of),
            trial_name_creator=_name_for_tune,
            trial_dirname_creator=_name_for_tune,
        ),
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(session.folder),
            callbacks=[events],
            stop=VerdictStopper(events),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )


def assignment_of(trial: Trial, directory: RunDirectory, feed: TrialSource) -> Assignment:
    """Return what the process of ``trial`` is told; its time budget begins now."""
    end_phases(directory.trial_directory(trial))  # of a process that was killed
    budget_s = trial.experiment.time_budget_s
    deadlines = [feed.deadline_s, None if budget_s is None else time.time() + budget_s]
    return Assignment(
        trial=trial,
        directory=directory.trial_directory(trial).resolve(),
        modules=directory.record.modules,
        restore=starting_point(trial),
        deadline_s=min((deadline for deadline in deadlines if deadline is not None), default=None),
        milestones=feed.milestones,
    )


def _name_for_tune(trial: TuneTrial) -> str:
    return f"trial-{trial.config[ASSIGNMENT].trial.index:05d}"
