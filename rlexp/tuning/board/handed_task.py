"""What ``rlexp join --as trainer`` hands to the process that trains a submitted task, in its environment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rlexp.errors import UsageError
from rlexp.transport.task_limits import is_name

TASK_VARIABLE: Final = "RLEXP_TASK"
"""``ID EPOCH PARENT MEMBER``; set by ``join`` only."""
_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class HandedTask:
    """A submitted task, and the right to train it."""

    id: str
    epoch: int
    parent: int
    """The process that waits for the end of the training."""
    member: str

    def to_text(self) -> str:
        """Return the value of TASK_VARIABLE."""
        return f"{self.id} {self.epoch} {self.parent} {self.member}"


def handed_task(environment: Mapping[str, str] = os.environ) -> HandedTask | None:
    """Return the task that this process is to train; None where nobody handed it one.

    Raises UsageError where the variable holds anything else.
    """
    text = environment.get(TASK_VARIABLE)
    if text is None:
        return None
    try:
        task_id, epoch, parent, member = text.split(" ", 3)
        if not is_name(task_id) or not member:
            raise ValueError
        return HandedTask(task_id, int(epoch), int(parent), member)
    except ValueError:
        raise UsageError(f"{TASK_VARIABLE} is set by rlexp join, and holds something else", "unset it") from None


@contextmanager
def ended_with_parent(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Ask this process to stop, as SIGTERM does, once the process that handed it a task has ended."""
    task, done = handed_task(environment), threading.Event()
    if task is None:
        yield
        return

    def watch(parent: int) -> None:
        while not done.wait(_LOOK_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, args=(task.parent,), name="parent", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
