"""Runs trials through Tune: queues them, records what they report, and ends in good order."""

from __future__ import annotations

import shutil
import time

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from rlexp.config.trial import Trial
from rlexp.tuning.display import Display
from rlexp.tuning.find_checkpoint import starting_point
from rlexp.tuning.run_directory import RunDirectory
from rlexp.tuning.run_record import Status
from rlexp.tuning.stop_request import StopRequest
from rlexp.tuning.trainable import ASSIGNMENT, STOP_FILE, Assignment, ExperimentTrainable, placement
from rlexp.tuning.trial_events import EndWhenSaved, TrialEvents
from rlexp.tuning.trial_feed import TrialFeed
from rlexp.tuning.tune_feed import Referee, TrialQueue

TUNE_FOLDER = ".tune"
"""Tune's own files, below the run's directory. They hold pickles: nothing of ours reads them."""


def run_trials(feed: TrialFeed, directory: RunDirectory, display: Display, request: StopRequest) -> Status:
    """Run every trial that ``feed`` gives to its end; return how the run as a whole ended. Ray must be up.

    Raises KeyboardInterrupt when a second signal asks for an end at once.
    """
    stop_file = directory.path / STOP_FILE
    stop_file.unlink(missing_ok=True)
    events = TrialEvents(feed, directory, display, request)
    tuner = make_tuner(feed, directory, events)
    request.trials_may_save(stop_file)
    try:
        tuner.fit()
        return events.conclude()  # trials that Tune left as they were end here, while their recorders are open
    finally:
        events.close()
        shutil.rmtree(directory.path / TUNE_FOLDER, ignore_errors=True)
        stop_file.unlink(missing_ok=True)


def make_tuner(feed: TrialFeed, directory: RunDirectory, events: TrialEvents) -> tune.Tuner:
    """Return a Tuner whose trials are exactly those of ``feed``, in their order, each with its own bundles."""

    def config_of(trial: Trial) -> dict[str, Assignment]:
        return {ASSIGNMENT: assignment_of(trial, directory, feed)}

    trainable = tune.with_resources(ExperimentTrainable, lambda config: placement(config[ASSIGNMENT].trial.experiment))
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            num_samples=-1,  # as many as there are
            search_alg=TrialQueue(feed, events, config_of),
            scheduler=Referee(feed, events, config_of),
            trial_name_creator=_name_for_tune,
            trial_dirname_creator=_name_for_tune,
        ),
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(directory.path.resolve()),
            callbacks=[events],
            stop=EndWhenSaved(events),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )


def assignment_of(trial: Trial, directory: RunDirectory, feed: TrialFeed) -> Assignment:
    """Return what the process of ``trial`` is told; its time budget begins now."""
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
