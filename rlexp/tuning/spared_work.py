"""What Tune does for a trial on this machine, without what is of use only in a cluster or to Ray's makers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.air._internal import usage
from ray.tune.execution import tune_controller

from rlexp.sessions.replaced_parts import replaced


class _PlainActorClasses:
    """Tune's cache of actor classes, without the runtime environment that Tune gives to each."""

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def get(self, trainable_class: type) -> Any:
        """Return the actor class of a Trainable."""
        if trainable_class not in self._made:
            self._made[trainable_class] = ray.remote(trainable_class)
        return self._made[trainable_class]


@contextmanager
def actors_of_idle_processes() -> Iterator[None]:
    """Let trials that Tune starts in the body, and the workers of these, be actors of processes that Ray has ready.

    Tune passes environment variables on to its trials as a runtime environment. Only a new process can have one, which
    an agent of Ray's prepares, for the trial and then for each of its workers. On one machine these processes inherit
    the variables anyway. A Tune that is made of other parts than the ones known here continues to do so.
    """
    with replaced(tune_controller, "_ActorClassCache", _PlainActorClasses):
        yield


@contextmanager
def callbacks_not_counted() -> Iterator[None]:
    """Let Tune in the body not count callbacks by their kinds for Ray's usage statistics, which rlexp turns off.

    For that it imports MLflow, Weights & Biases and others where they are installed, which takes a second or more.
    """
    with replaced(usage, "tag_callbacks", lambda callbacks: False):
        yield
