"""Session: a Ray for the time of one command, of its own or somebody's; what both kinds raise and share."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rlexp.errors import RlexpError
from rlexp.processes.threads import Function

if TYPE_CHECKING:
    from ray.job_config import JobConfig

    from rlexp.machine.cluster import Cluster


class RayStartError(RlexpError):
    """Ray could not be started, or not be joined."""


class RayStoppedError(RlexpError):
    """A part of Ray that every trial needs has ended, or cannot be reached, while trials ran."""

    exit_code = 5


class Session(Protocol):
    """A Ray between ``__enter__`` and ``__exit__``, called in one thread; :class:`OwnRay` and :class:`JoinedRay`."""

    @property
    def cluster(self) -> Cluster:
        """The nodes that trials may use; known before it is entered."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether it is somebody's cluster, which goes on without this command."""
        ...

    @property
    def is_abandoned(self) -> bool:
        """Whether the rest of Ray is left without a call to it, which might wait for a minute or crash."""
        ...

    @property
    def folder(self) -> Path:
        """Where its temporary files are, on this machine; only while it is entered."""
        ...

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        """Call a function that uses Ray in a thread; raises what it raises, or what one of ``checks`` raises meanwhile.

        Raises RayStoppedError where a part without which Ray cannot work is lost.
        """
        ...

    def leave(self) -> None:
        """Abandon Ray where the function that was called last has not ended, nor ends soon."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def exit_without_ray(code: int) -> None:
    """Let the interpreter end with ``code`` before Ray's own exit handlers, which would wait for an abandoned Ray."""
    atexit.register(os._exit, code)  # what is registered last is called first


def job_without_folders() -> JobConfig:
    """Return a job whose processes search Python's own path only.

    Ray would put the current folder in front of it, where a file ``torch.py`` would be imported as torch. The
    folders of the user's modules are sent with the envs that need them.
    """
    from ray.job_config import JobConfig

    class JobWithoutFolders(JobConfig):
        def _serialize(self) -> str:
            self._py_driver_sys_path = []
            return super()._serialize()

    return JobWithoutFolders()
