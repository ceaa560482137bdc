"""SharedStudy: a study of Optuna in a storage, that optuna-dashboard shows and that several sweeps can use."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Point, Sweep
from rlexp.errors import ConfigError, Problem, UsageError
from rlexp.files import plain
from rlexp.runs.resuming import CHANGEABLE_IN_SWEEPS, differences
from rlexp.search.optuna import (
    known_point,
    open_storage,
    optuna_place,
    parameters_of,
    rehearsed_distributions,
    suggested_point,
)
from rlexp.text import masked

if TYPE_CHECKING:
    import optuna

SWEEP, CONFIGURATION, SAME_AS, SEEDS, FAILED = "sweep", "configuration", "same_as", "seeds", "failed"
"""User attributes of a trial: its sweep's id, its number there, the trial whose point it repeats, seeds, failure."""
_METRIC, _EXPERIMENT = "metric", "experiment"
"""User attributes of a study: its metric and its experiment. ``sweep ID`` exists for each sweep."""
_SECONDS_BETWEEN_SIGNS: Final = 60.0
_OTHER_KEYS: Final = ("config/seed", "num_samples")
"""Keys in which sweeps of one study may differ, beside the keys that a resumed sweep may change."""


@dataclass(frozen=True)
class StudyMember:
    """The identity of a sweep in its study."""

    id: str
    run_directory: Path
    folder: Path
    """The folder to which a storage path is relative: the one of the command that began the sweep."""


def direction_of(sweep: Sweep) -> Literal["minimize", "maximize"]:
    """Return Optuna's word for the mode."""
    return "minimize" if sweep.search.mode == "min" else "maximize"


def require_study(sweep: Sweep, folder: Path) -> None:
    """Raise ConfigError if the storage of a sweep cannot be opened, or its study is of something else."""
    options = sweep.search.optuna
    if sweep.searcher != "optuna" or options.storage is None:
        return
    import optuna

    try:
        storage = open_storage(options.storage, folder)
    except UsageError as error:
        raise _refusal(sweep, error.message, error.hint) from error
    name = study_name(sweep)
    if all(study.study_name != name for study in storage.get_all_studies()):
        return
    study = optuna.load_study(study_name=name, storage=storage)
    why = next(_differences(study, sweep), None)
    if why is not None:
        message = f"search.optuna.storage has a study {name!r} of something else: {why}"
        hint = "write another search.optuna.study_name"
        raise _refusal(sweep, message, hint)


def _refusal(sweep: Sweep, message: str, hint: str | None) -> ConfigError:
    """Return the error at the line of the storage, which may be an override with a password."""
    return ConfigError([Problem(masked(optuna_place(sweep, "storage")), message, hint)])


def study_name(sweep: Sweep) -> str:
    """Return the name of a sweep's study."""
    return sweep.search.optuna.study_name or sweep.name


def _differences(study: optuna.Study, sweep: Sweep) -> Iterator[str]:
    """Yield the differences between a study and a sweep that make their values incomparable."""
    directions = [direction.name.lower() for direction in study.directions]
    if directions != [direction_of(sweep)]:
        yield f"it does not {direction_of(sweep)} one value; it has {', '.join(directions)}"
    metric = study.user_attrs.get(_METRIC, sweep.search.metric)
    if metric != sweep.search.metric:
        yield f"its metric is {metric}"
    before = study.user_attrs.get(_EXPERIMENT)
    if isinstance(before, dict):
        paths = [path for axis in sweep.space.axes for path in axis.makes or (axis.path,)]
        searched = {"/".join(map(str, path)) for path in paths}
        yield from differences(before, _settings(sweep), CHANGEABLE_IN_SWEEPS | searched | set(_OTHER_KEYS))
    known = rehearsed_distributions(sweep.space.domains)
    for trial in study.get_trials(deepcopy=False):
        for key, distribution in trial.distributions.items():
            if known.get(key) != distribution:
                yield f"its {key} is {distribution}"


def _settings(sweep: Sweep) -> dict[str, Any]:
    settings: dict[str, Any] = plain(masked(sweep.variants[0].model_dump(mode="json", exclude={"name", "search"})))
    return settings


class SharedStudy:
    """Owns the part of one sweep in a study: its trials, by user attributes, and its heartbeats."""

    def __init__(self, sweep: Sweep, member: StudyMember, sampler: optuna.samplers.BaseSampler) -> None:
        """Join the study of a sweep, or make it."""
        import optuna

        assert sweep.search.optuna.storage is not None
        storage = open_storage(sweep.search.optuna.storage, member.folder)
        name, direction = study_name(sweep), direction_of(sweep)
        try:
            self.study = optuna.create_study(storage=storage, study_name=name, sampler=sampler, direction=direction)
            self.is_new = True
            self._describe(sweep)
        except optuna.exceptions.DuplicatedStudyError:
            self.study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
            self.is_new = False
        self._sweep = sweep
        self._member = member
        self._domains = sweep.space.domains
        self._next_sign = 0.0
        self.keep_alive()

    def keep_alive(self) -> None:
        """Record once a minute that this sweep runs, and end trials of sweeps that have not done so for long."""
        if time.monotonic() < self._next_sign:
            return
        self._next_sign = time.monotonic() + _SECONDS_BETWEEN_SIGNS
        lost_at = time.time() + 2 * self._sweep.search.hang_timeout_s + 2 * _SECONDS_BETWEEN_SIGNS
        sign = {"run_directory": str(self._member.run_directory), "host": socket.gethostname(), "lost_at": lost_at}
        self.study.set_user_attr(f"sweep {self._member.id}", sign)
        self._fail_lost_trials()

    def begin(self, trial: optuna.Trial, configuration: int) -> None:
        """Record that a trial is a configuration of this sweep."""
        trial.set_user_attr(SWEEP, self._member.id)
        trial.set_user_attr(CONFIGURATION, configuration)

    def describe(self, trial: optuna.Trial, trials: Sequence[Trial]) -> None:
        """Record the run's trials of a configuration."""
        trial.set_user_attr("run_directory", str(self._member.run_directory))
        trial.set_user_attr("trials", [each.name for each in trials])
        trial.set_user_attr(SEEDS, [each.experiment.config.seed for each in trials])

    def describe_failure(self, trial: optuna.Trial) -> None:
        """Record that a configuration failed: the study has it as pruned, so that samplers learn from it."""
        trial.set_user_attr(FAILED, True)

    def repeat(self, trial: optuna.Trial, of: int) -> None:
        """Record that a trial is not run, as trial ``of`` has the same point."""
        trial.set_user_attr(SAME_AS, of)

    def copy(self, other: optuna.trial.FrozenTrial, trial: optuna.Trial) -> None:
        """End a trial like another sweep's at its point; if that still runs, as failed, which is ignored."""
        from optuna.trial import TrialState

        trial.set_user_attr(SAME_AS, other.number)
        if other.state is TrialState.COMPLETE:
            self.study.tell(trial, other.value)
            return
        for step, value in other.intermediate_values.items():
            trial.report(value, step)
        self.study.tell(trial, state=TrialState.PRUNED if other.state is TrialState.PRUNED else TrialState.FAIL)

    def is_enqueued(self, trial: optuna.Trial) -> bool:
        """Return whether a person wrote the trial's parameters into the study; they may not be in the space."""
        return "fixed_params" in self._trials()[trial.number].system_attrs

    def refuse(self, trial: optuna.Trial) -> None:
        """Record a trial as failed, as it is not a point of the space."""
        from optuna.trial import TrialState

        trial.set_user_attr("refused", "its parameters are not in the space")
        self.study.tell(trial, state=TrialState.FAIL)

    def fail(self, trial: optuna.trial.FrozenTrial) -> None:
        """Record a running trial as failed, which samplers ignore."""
        from optuna.trial import TrialState

        self.study.tell(trial.number, state=TrialState.FAIL)

    def is_running(self, trial: optuna.Trial) -> bool:
        """Return whether no other sweep has recorded this sweep's trial as failed."""
        return not self._trials()[trial.number].state.is_finished()

    def own(self) -> list[optuna.trial.FrozenTrial]:
        """Return the trials of this sweep."""
        return [each for each in self._trials() if each.user_attrs.get(SWEEP) == self._member.id]

    def others(self) -> Iterator[tuple[Point, optuna.trial.FrozenTrial]]:
        """Yield the points that other sweeps try or have tried, with the seeds of this one."""
        for trial in self._trials():
            attrs = trial.user_attrs
            if attrs.get(SWEEP) == self._member.id or SAME_AS in attrs or trial.state.name in ("FAIL", "WAITING"):
                continue
            point = known_point(trial.params, self._domains)
            if point is not None and ("seed" in point or attrs.get(SEEDS) == list(self._sweep.seeds)):
                yield point, trial

    def continued(self, trial: optuna.trial.FrozenTrial) -> optuna.Trial:
        """Return a running trial as an object that can get its outcome."""
        import optuna

        return optuna.Trial(self.study, trial._trial_id)

    def added(self, configuration: int, point: Point) -> optuna.Trial:
        """Add a point as a running trial that the study has lost."""
        import optuna

        fixed = optuna.trial.FixedTrial(parameters_of(point, self._domains))
        suggested_point(fixed, self._domains)  # so that it knows the distributions
        attributes = {SWEEP: self._member.id, CONFIGURATION: configuration}
        running = optuna.trial.TrialState.RUNNING
        self.study.add_trial(
            optuna.trial.create_trial(
                state=running, params=fixed.params, distributions=fixed.distributions, user_attrs=attributes
            )
        )
        return self.continued([each for each in self.own() if each.user_attrs.get(CONFIGURATION) == configuration][-1])

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _describe(self, sweep: Sweep) -> None:
        self.study.set_user_attr(_METRIC, sweep.search.metric)
        self.study.set_user_attr(_EXPERIMENT, _settings(sweep))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings that the names of metrics are experimental
            self.study.set_metric_names([sweep.search.metric])

    def _fail_lost_trials(self) -> None:
        """Record running trials of sweeps that were killed as failed, which samplers ignore."""
        from optuna.trial import TrialState

        signs = self.study.user_attrs
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            sweep = trial.user_attrs.get(SWEEP)
            sign = signs.get(f"sweep {sweep}")
            if sweep is None or sweep == self._member.id or not _is_lost(sign):
                continue
            try:
                self.study.tell(trial.number, state=TrialState.FAIL)
            except ValueError:  # it has just ended
                continue


def _is_lost(sign: Any) -> bool:
    lost_at = sign.get("lost_at") if isinstance(sign, Mapping) else None
    return not isinstance(lost_at, int | float) or time.time() > lost_at
