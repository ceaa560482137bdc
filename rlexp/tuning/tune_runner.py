"""Runs trials through Tune: places their bundles, queues, pauses and resumes them, and ends them in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.error import TuneError
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from rlexp.cluster.pool.nodes import RayTables
from rlexp.cluster.quick_start.raylet import actors_of_idle_processes, callbacks_not_counted
from rlexp.cluster.session import Session
from rlexp.cluster.shortcuts import notes
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import Trial, bundles_of
from rlexp.processes.signals import END_TIMEOUT_S, StopRequest
from rlexp.runs.record import Status
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import STOP_FILE
from rlexp.search.standings import Display
from rlexp.search.trial_scheduler import Verdict
from rlexp.search.trial_source import TrialSource
from rlexp.tuning.assignment import ASSIGNMENT, Assignment, assignment_of, started_keeper
from rlexp.tuning.cluster_trials import ClusterTrials
from rlexp.tuning.trainable import ExperimentTrainable
from rlexp.tuning.trial_watch import our_trial
from rlexp.tuning.tune_callbacks import TrialEvents


def placement(experiment: Experiment) -> tune.PlacementGroupFactory:
    """Return the bundles of a trial for Tune, which waits until Ray has placed all of them."""
    bundles = bundles_of(experiment.config)
    return tune.PlacementGroupFactory([dict(bundle) for bundle in bundles.listed], strategy=bundles.strategy)


MakeConfig = Callable[[Trial], dict[str, Assignment]]
TUNE_FOLDER = "tune"
"""Folder of Tune's own files, in the session's folder. They hold pickles, which we never read."""
SAVE_TIMEOUT_S = 7.0
"""Seconds that trials may take to save and end after Ctrl-C before Tune ends them."""
SENT_SAVE_TIMEOUT_S = 30.0
"""The same if checkpoints are sent from the trials' nodes to the directory of the run."""


def run_trials(
    source: TrialSource, directory: RunDirectory, display: Display, request: StopRequest, session: Session
) -> Status:
    """Run every trial of ``source`` to its end; return how the run as a whole ended. ``session`` is entered.

    Raises KeyboardInterrupt at a second signal, which ends the run at once, and RayStoppedError or LostDirectoryError
    if the run lost what it needs. Unfinished trials are then recorded as stopped.
    """
    stop_file = directory.path / STOP_FILE
    stop_file.unlink(missing_ok=True)
    cluster = ClusterTrials(RayTables(), directory, display) if session.is_joined else None
    events = TrialEvents(source, directory, display, request, cluster)
    for text in notes(session.is_joined):
        display.on_note(None, text)

    def run_tune() -> None:
        with ExitStack() as stack:
            stack.enter_context(callbacks_not_counted())
            keeper = None if session.cluster.shares_out else stack.enter_context(started_keeper(directory.path))
            if not session.is_joined:
                stack.enter_context(actors_of_idle_processes())
            make_tuner(source, directory, events, session, keeper).fit()

    request.trials_may_save(stop_file, END_TIMEOUT_S + _save_timeout_s(session) - SAVE_TIMEOUT_S)
    try:
        session.call(run_tune, directory.check, request.check_deadline)
    except TuneError as error:
        raise _first_cause(error) from None
    finally:
        events.leave()
        session.leave()
        with closing(events):
            if not directory.is_lost:
                status = events.conclude()  # errors of trials that Tune left unchanged, while their recorders are open
                stop_file.unlink(missing_ok=True)
    for text in [*directory.copies.finish(), *directory.trackers.finish()]:
        display.on_note(None, text)
    return status


def _save_timeout_s(session: Session) -> float:
    return SAVE_TIMEOUT_S if session.cluster.shares_out else SENT_SAVE_TIMEOUT_S


def _first_cause(error: BaseException) -> BaseException:
    """Return the error of our function that Tune called; Tune's own error has only its text."""
    while isinstance(error, TuneError) and error.__context__ is not None:
        error = error.__context__
    return error


def make_tuner(
    source: TrialSource, directory: RunDirectory, events: TrialEvents, session: Session, keeper: str | None = None
) -> tune.Tuner:
    """Return a Tuner with exactly the trials of ``source``, in their order, each with its resource bundles.

    ``keeper`` names the actor with the run's directory, if the trials may not have it.
    """

    def config_of(trial: Trial) -> dict[str, Assignment]:
        return {ASSIGNMENT: assignment_of(trial, directory, source, keeper)}

    trainable = tune.with_resources(ExperimentTrainable, lambda config: placement(config[ASSIGNMENT].trial.experiment))
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            num_samples=-1,  # as many as there are
            reuse_actors=source.reuses_processes,
            search_alg=TrialQueue(source, events, config_of),
            scheduler=PausingScheduler(source, events, config_of),
            trial_name_creator=_name_for_tune,
            trial_dirname_creator=_name_for_tune,
        ),
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(session.folder),
            callbacks=[events],
            stop=VerdictStopper(events, _save_timeout_s(session)),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )


def _name_for_tune(trial: TuneTrial) -> str:
    return f"trial-{our_trial(trial).index:05d}"


class TrialQueue(Searcher):
    """Gives the source's trials to Tune, one whenever Tune has room for one."""

    def __init__(self, source: TrialSource, events: TrialEvents, make_config: MakeConfig) -> None:
        super().__init__()
        self._source = source
        self._events = events
        self._make_config = make_config

    def __reduce__(self) -> tuple[Any, ...]:
        """See ``TrialEvents.__reduce__``."""
        return (Searcher, ())

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Ignore Tune's own space and metric."""
        return True

    def suggest(self, trial_id: str) -> Any:
        self._events.check_not_left()
        if self._events.request.requested:
            return str(Searcher.FINISHED)
        trial = self._events.take_lost() or self._source.next()
        if trial is not None:
            self._events.on_given(trial)
            return dict(self._make_config(trial))
        is_over = self._source.finished and not self._events.waits_for_start
        return str(Searcher.FINISHED) if is_over else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: ``TrialEvents`` reports the end."""

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file: Tune expects one for the state, which is never restored."""
        Path(checkpoint_path).touch()


class PausingScheduler(FIFOScheduler):
    """Carries out decisions about results in Tune: continue, or pause and continue later."""

    def __init__(self, source: TrialSource, events: TrialEvents, make_config: MakeConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        self._events = events
        self._make_config = make_config

    def __reduce__(self) -> tuple[Any, ...]:
        """See ``TrialEvents.__reduce__``."""
        return (FIFOScheduler, ())

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        """Carry out the decision that VerdictStopper requested just before; Tune does not ask here about the end."""
        decision = self._events.decisions[our_trial(trial).name]
        if decision.verdict is Verdict.CONTINUE:
            self._events.leave_node(trial)
            return str(FIFOScheduler.CONTINUE)
        if decision.changed is not None:
            trial.set_config(self._make_config(decision.changed))  # type: ignore[no-untyped-call]
        tune_controller.pause_trial(trial, should_checkpoint=False)
        return str(FIFOScheduler.NOOP)

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """Return a paused trial that continues; Tune itself starts trials that have not begun."""
        self._events.check_not_left()
        if self._events.request.requested:
            return None
        trials = tune_controller.get_trials()
        for ending in self._events.to_end([trial for trial in trials if trial.status == TuneTrial.PENDING]):
            tune_controller.stop_trial(ending)
        paused: dict[str, TuneTrial] = {
            our_trial(trial).name: trial for trial in trials if trial.status == TuneTrial.PAUSED
        }
        for trial in self._source.stopped([our_trial(trial) for trial in paused.values()]):
            tune_controller.stop_trial(paused.pop(trial.name))
        chosen = self._source.next_paused([our_trial(trial) for trial in paused.values()])
        if chosen is None:
            return None
        continued: TuneTrial = paused[chosen.name]
        if chosen != our_trial(continued):  # its keys have changed
            continued.set_config(self._make_config(chosen))  # type: ignore[no-untyped-call]
        self._events.on_given(chosen)
        return continued

    def save(self, checkpoint_path: str) -> None:
        """Write nothing, as the state is never restored."""


class VerdictStopper(tune.Stopper):
    """Requests the decision about a trial after each result: Tune calls it first, and once for every result.

    Ends the experiment after a stop was requested, when no remaining trial could save.
    """

    def __init__(self, events: TrialEvents, save_timeout_s: float) -> None:
        self._events = events
        self._save_timeout_s = save_timeout_s
        self._deadline_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """See ``TrialEvents.__reduce__``."""
        return (tune.stopper.NoopStopper, ())

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether the trial ends early; its result says whether it has reached its own end."""
        return self._events.on_result(result).verdict is Verdict.STOP

    def stop_all(self) -> bool:
        """Return whether everything may end now."""
        if not self._events.request.requested:
            return False
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._save_timeout_s
        return not self._events.can_save or time.monotonic() > self._deadline_s
