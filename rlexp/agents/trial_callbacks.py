"""The user's callbacks in the process of a trial: their hooks for iterations and checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlexp.callbacks import Callbacks, IterationEnd, SavedCheckpoint
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.metric_names import OWN_METRICS
from rlexp.config.keys.user_modules import UserModules
from rlexp.rollout.user_callbacks import NO_CALLBACKS, UserCallbacks, callback_classes


def trial_callbacks(config: CommonConfig, modules: UserModules) -> UserCallbacks:
    """Return the objects of the trial's process, none where ``config`` names no classes.

    Raises UsageError where one does not exist, CallbackError where it cannot be made.
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
    """Call the hooks of the checkpoint that was written to ``path`` after the iteration of ``row``."""
    hooks = callbacks.hooks(Callbacks.on_checkpoint)
    if hooks:
        checkpoint = SavedCheckpoint(path=path, row=_read_only(row))
        for hook in hooks:
            hook(checkpoint)


def _read_only(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy, whose nested mappings are the hooks' own too."""
    return MappingProxyType(copy.deepcopy(dict(row)))
