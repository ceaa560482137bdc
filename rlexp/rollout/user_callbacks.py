"""The user's callbacks in one process: objects of the classes that a file names, and calls whose errors name them.

A trial's own process calls their hooks for iterations and checkpoints; ``episodes.py`` has the hooks of episodes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rlexp.callbacks import Callbacks, IterationEnd, SavedCheckpoint
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.metrics import OWN_METRIC_NAME, OWN_METRICS
from rlexp.config.keys.user_code import NO_MODULES, UserModules, UserPart
from rlexp.errors import CallbackError, UsageError
from rlexp.metrics import MOST_METRICS
from rlexp.user_code.classes import find_class, prepare_imports
from rlexp.user_code.finding import raised_by_user

BASE_NAME: Final = "rlexp.callbacks.Callbacks"
_PLAIN: Final = (type(None), bool, int, str)
_PLAIN_KINDS: Final = "biuf"


@dataclass(frozen=True)
class CallbackClasses:
    """The classes of an experiment, by name. This is plain data, from which each process makes its own objects."""

    parts: tuple[UserPart, ...]
    modules: UserModules = NO_MODULES

    def make(self, place: str) -> UserCallbacks:
        """Import the classes and make one object of each; messages name ``place`` as the process of the objects.

        Raises UsageError if a class does not exist, CallbackError if it cannot be made.
        """
        prepare_imports((part.module for part in self.parts), self.modules)
        return UserCallbacks(tuple((part.name, self._made(part, place)) for part in self.parts), place)

    def _made(self, part: UserPart, place: str) -> Callbacks:
        found = find_class(part.key, part.name, Callbacks, BASE_NAME)
        _refuse_unknown_hooks(part, found)
        try:
            made = found(**part.kwargs)
        except BaseException as error:
            raise _raised(part.name, "__init__", place, error) from error
        _refuse_other_arguments(part, made)
        declared: object = made.EPISODE_METRICS
        if not isinstance(declared, tuple | list):  # the letters of a str would be names
            message = f"{part.key} {part.name}: EPISODE_METRICS is {declared!r}, not a tuple of names"
            raise UsageError(message, 'write EPISODE_METRICS = ("name",)')
        for name in declared:
            if not _is_name(name):
                raise UsageError(f"{part.key} {part.name}: {_bad_name(name)}", "correct its EPISODE_METRICS")
        return made


def _refuse_unknown_hooks(part: UserPart, kind: type[Callbacks]) -> None:
    """Raise UsageError for a method whose name looks like a hook but is not one, as it would never be called."""
    for name in dir(kind):
        if name.startswith("on_") and not hasattr(Callbacks, name):
            hooks = [hook for hook in dir(Callbacks) if hook.startswith("on_")]
            close = get_close_matches(name, hooks, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(hooks)}"
            raise UsageError(f"{part.key} {part.name}: {name} is not a hook", hint)


def _refuse_other_arguments(part: UserPart, made: Callbacks) -> None:
    """Raise UsageError for a hook that cannot be called with one argument, as all are."""
    for name in dir(Callbacks):
        if name.startswith("on_"):
            try:
                signature(getattr(made, name)).bind(None)
            except TypeError:
                message = f"{part.key} {part.name}: {name} does not take one argument"
                raise UsageError(message, f"write def {name}(self, {name.rpartition('_')[2]})") from None


class UserCallbacks:
    """The objects, in the order of the file; owned by a worker or an agent. Empty without callbacks."""

    def __init__(self, objects: tuple[tuple[str, Callbacks], ...] = (), place: str = "") -> None:
        """``objects`` are named by their classes."""
        self._objects = objects
        self._place = place
        self.episode_metrics = tuple(dict.fromkeys(name for _, each in objects for name in each.EPISODE_METRICS))
        """The names of the episode metrics that the classes declare."""
        self._iteration_names: set[str] = set()
        self._are_all_declared = bool(objects) and all(each.EPISODE_METRICS for _, each in objects)

    def hooks(self, hook: Callable[..., None]) -> tuple[Callable[[Any], None], ...]:
        """Return the methods that override ``hook``, a method of Callbacks. Their errors become CallbackError."""
        found = ((name, getattr(each, hook.__name__)) for name, each in self._objects)
        own = ((name, method) for name, method in found if getattr(method, "__func__", None) is not hook)
        return tuple(_guarded(name, method, self._place) for name, method in own)

    def checked_metrics(self, metrics: Mapping[Any, Any], of_episode: bool) -> dict[str, float]:
        """Return own metrics as floats, without those that are NaN; raises CallbackError for anything else."""
        checked: dict[str, float] = {}
        for name, value in metrics.items():
            if not _is_name(name):
                raise self._refused(_bad_name(name), "choose another name")
            if of_episode and self._are_all_declared and name not in self.episode_metrics:
                declared = ", ".join(self.episode_metrics)
                raise self._refused(f"the metric {name} is not declared, only {declared}", "add it to EPISODE_METRICS")
            number = _number(value)
            if number is None:
                raise self._refused(f"the metric {name} is {value!r}", "it must be a finite number, or NaN for none")
            if not math.isnan(number):
                checked[name] = number
        return checked

    def iteration_metrics(self, metrics: Mapping[Any, Any], of_episodes: Collection[str]) -> dict[str, float]:
        """Return the own metrics of an iteration, checked as by ``checked_metrics``; its row has those ``of_episodes``.

        Raises CallbackError if both have the same name, or for more than MOST_METRICS names in all iterations.
        """
        checked = self.checked_metrics(metrics, of_episode=False)
        for name in checked:
            if name in of_episodes:
                message = f"on_iteration reports the metric {name}, but episodes have a metric of the same name"
                raise self._refused(message, "choose another name")
        self._iteration_names.update(checked)
        if len(self._iteration_names) > MOST_METRICS:
            message = f"on_iteration reports more than {MOST_METRICS} own metrics: {', '.join(list(checked)[:5])} ..."
            raise self._refused(message, "report a few, by names that do not change from iteration to iteration")
        return checked

    def state(self) -> dict[str, Any]:
        """Return the objects' own states by class; raises CallbackError if a state is not plain data."""
        states = [self._state_of(name, each) for name, each in self._objects]
        return {"classes": [name for name, _ in self._objects], "states": states}

    def load(self, state: Mapping[str, Any] | None) -> bool:
        """Let the objects continue from what ``state`` returned; False, with nothing done, for other classes."""
        if state is None or state["classes"] != [name for name, _ in self._objects]:
            return False
        for (name, each), own in zip(self._objects, state["states"], strict=True):
            _guarded(name, each.load, self._place)(own)
        return True

    def _state_of(self, name: str, callbacks: Callbacks) -> dict[str, Any]:
        state = _guarded(name, callbacks.state, self._place)()
        hint = "return a dict of finite numbers, strings, lists, dicts and arrays"
        if not isinstance(state, dict):
            raise CallbackError(f"callbacks {name}: state returned {type(state).__name__}, not a dict", hint)
        try:
            copied: dict[str, Any] = plain_copy(state)
        except ValueError as error:
            raise CallbackError(f"callbacks {name}: what state returned cannot be saved: {error}", hint) from error
        return copied

    def _refused(self, what: str, hint: str) -> CallbackError:
        names = ", ".join(name for name, _ in self._objects)
        return CallbackError(f"callbacks {names}: {what} ({self._place})", hint)


NO_CALLBACKS: Final = UserCallbacks()
"""The callbacks of an agent without any."""


def plain_copy(value: Any) -> Any:
    """Return a copy of ``value`` for a checkpoint, with Python numbers for NumPy's; ValueError if there is none."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_copy(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype.kind in _PLAIN_KINDS:
        return value.copy()
    number = value.item() if isinstance(value, np.generic) else value
    if type(number) in _PLAIN or (type(number) is float and math.isfinite(number)):
        return number
    raise ValueError(f"no checkpoint can hold {type(value).__name__}")


def _guarded(name: str, method: Callable[..., Any], place: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except BaseException as error:
            raise _raised(name, method.__name__, place, error) from error

    return call


def _raised(name: str, hook: str, place: str, error: BaseException) -> CallbackError:
    return CallbackError(f"callbacks {name}: {raised_by_user(error)} ({hook}, {place})", "correct the class")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and OWN_METRIC_NAME.fullmatch(name) is not None


def _bad_name(name: object) -> str:
    return f"{name!r} is not a valid name of a metric: it must be up to 64 letters, digits, _ and -"


def _number(value: Any) -> float | None:
    """Return a number as a float, NaN included; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in _PLAIN_KINDS:
        value = value.item()
    if not isinstance(value, bool | int | float | np.number | np.bool_):
        return None
    number = float(value)
    return None if math.isinf(number) else number


def callback_classes(parts: Iterable[UserPart], modules: UserModules) -> CallbackClasses | None:
    """Return the classes that ``parts`` name; None if there are none."""
    named = tuple(parts)
    return CallbackClasses(named, modules) if named else None


def trial_callbacks(config: CommonConfig, modules: UserModules) -> UserCallbacks:
    """Return the objects of the trial's process; none if ``config`` names no classes.

    Raises UsageError if one does not exist, CallbackError if it cannot be made.
    """
    classes = callback_classes(config.callback_parts, modules)
    return NO_CALLBACKS if classes is None else classes.make("the trial's process")


def end_iteration(callbacks: UserCallbacks, row: dict[str, Any]) -> dict[str, Any]:
    """Call the hooks of an iteration's end; return its ``row`` with the metrics that they added."""
    hooks = callbacks.hooks(Callbacks.on_iteration)
    if not hooks:
        return row
    iteration = IterationEnd(row=_read_only(row))
    for hook in hooks:
        hook(iteration)
    of_episodes = row.get(OWN_METRICS, {})
    added = callbacks.iteration_metrics(iteration.metrics, of_episodes)
    return row | {OWN_METRICS: {**of_episodes, **added}} if added else row


def announce_checkpoint(callbacks: UserCallbacks, path: Path, row: Mapping[str, Any]) -> None:
    """Call the hooks of the checkpoint at ``path``, written after the iteration of ``row``."""
    hooks = callbacks.hooks(Callbacks.on_checkpoint)
    if hooks:
        checkpoint = SavedCheckpoint(path=path, row=_read_only(row))
        for hook in hooks:
            hook(checkpoint)


def _read_only(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a read-only copy; its nested mappings are copies too."""
    return MappingProxyType(copy.deepcopy(dict(row)))
