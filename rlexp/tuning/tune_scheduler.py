"""A feed in Tune's own words: where Tune asks for trials, and where it asks what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from rlexp.config.keys.trial import Trial
from rlexp.search.trial_scheduler import Verdict
from rlexp.search.trial_source import TrialSource
from rlexp.tuning.trainable import ASSIGNMENT, Assignment
from rlexp.tuning.tune_callbacks import TrialEvents

MakeConfig = Callable[[Trial], dict[str, Assignment]]


class TrialQueue(Searcher):
    """Hands the feed's trials to Tune, one when it has room for one."""

    def __init__(self, feed: TrialSource, events: TrialEvents, make_config: MakeConfig) -> None:
        super().__init__()
        self._feed = feed
        self._events = events
        self._make_config = make_config

    def __reduce__(self) -> tuple[Any, ...]:
        """See ``TrialEvents.__reduce__``."""
        return (Searcher, ())

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Tune's own space and metric are none of ours."""
        return True

    def suggest(self, trial_id: str) -> Any:
        self._events.check_not_left()
        if self._events.request.requested:
            return str(Searcher.FINISHED)
        trial = self._feed.next()
        if trial is not None:
            return dict(self._make_config(trial))
        return str(Searcher.FINISHED) if self._feed.finished else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The events tell the feed."""

    def save(self, checkpoint_path: str) -> None:
        """Tune wants a file for its state, which nobody restores."""
        Path(checkpoint_path).touch()


class PausingScheduler(FIFOScheduler):
    """Carries out in Tune what was decided about a result: continue, or pause and continue later."""

    def __init__(self, feed: TrialSource, events: TrialEvents, make_config: MakeConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._feed = feed
        self._events = events
        self._make_config = make_config

    def __reduce__(self) -> tuple[Any, ...]:
        """See ``TrialEvents.__reduce__``."""
        return (FIFOScheduler, ())

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        """Carry out the decision that VerdictStopper asked for just before; Tune does not ask here about the end."""
        decision = self._events.decisions[_ours(trial).name]
        if decision.verdict is Verdict.CONTINUE:
            return str(FIFOScheduler.CONTINUE)
        if decision.changed is not None:
            trial.set_config(self._make_config(decision.changed))  # type: ignore[no-untyped-call]
        tune_controller.pause_trial(trial, should_checkpoint=False)
        return str(FIFOScheduler.NOOP)

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """Return a paused trial that continues; those that have not begun Tune starts by itself."""
        self._events.check_not_left()
        if self._events.request.requested:
            return None
        trials = tune_controller.get_trials()
        paused = {_ours(trial).name: trial for trial in trials if trial.status == TuneTrial.PAUSED}
        for trial in self._feed.stopped([_ours(trial) for trial in paused.values()]):
            tune_controller.stop_trial(paused.pop(trial.name))
        chosen = self._feed.next_paused([_ours(trial) for trial in paused.values()])
        return None if chosen is None else paused[chosen.name]

    def save(self, checkpoint_path: str) -> None:
        """Tune's state is nobody's."""


def _ours(trial: TuneTrial) -> Trial:
    assignment: Assignment = trial.config[ASSIGNMENT]
    return assignment.trial
