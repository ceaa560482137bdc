"""The services of our own Ray: only the ones that trials need, without those for a cluster or a dashboard.

``ray.init`` starts seven processes. Trials need two, the registry (``gcs_server``) and the node's manager (``raylet``);
the other five are Python programs that take a fifth of the CPU time until the first result: the autoscaler's monitor,
the dashboard's server and its agent, the monitor of logs, and the agent that prepares runtime environments, which
trials on this machine do not have. The raylet starts no process of a trial before two of them answer. Tune's work for
clusters and for Ray's usage statistics is left out too. Each is done only if Ray has the replaced parts, as
``shortcuts`` says.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from rlexp.cluster.quick_start import raylet_script
from rlexp.cluster.quick_start.raylet_script import AGENT, START
from rlexp.cluster.shortcuts import IDLE_PROCESSES, PLAIN_PATH, SMALL_SERVICES, UNCOUNTED_CALLBACKS

if TYPE_CHECKING:
    from ray.job_config import JobConfig

NO_PORT: Final = -1
"""An agent of Ray's without a service writes this in place of its port."""
_AGENTS: Final = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
"""Options of the raylet, which needs a command for each of its agents."""
_AHEAD: Final = "--num_prestart_python_workers="
"""Number of processes that it starts ahead; by default one for each CPU."""
_AT_ONCE: Final = "--maximum_startup_concurrency="
_PROCESS: Final = "--python_worker_command="
"""Command of a trial's or worker's process: interpreter, script for runtime environments, script for all, arguments."""


@contextmanager
def replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace a module's attribute in the body."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def only_needed_services(
    num_cpus: int, num_processes: int, with_logs: bool, fork_server: Path | None = None
) -> Iterator[dict[str, Any] | None]:
    """Let ``ray.init`` in the body start only the services that trials need; yield Ray's system settings for it.

    The raylet starts ``num_processes`` ahead, or requests processes at the socket ``fork_server`` when they are needed.
    ``with_logs``: output of the trials' processes is passed on to this one.
    """
    if SMALL_SERVICES.why_off() is not None:
        yield None
        return
    from ray._private import node, services
    from ray._private.node import Node
    from ray._raylet import (  # type: ignore[attr-defined]  # compiled
        DASHBOARD_AGENT_LISTEN_PORT_NAME,
        METRICS_AGENT_PORT_NAME,
        METRICS_EXPORT_PORT_NAME,
        RUNTIME_ENV_AGENT_PORT_NAME,
        persist_port,
    )

    start_process = services.start_ray_process
    ports = (
        DASHBOARD_AGENT_LISTEN_PORT_NAME,
        METRICS_AGENT_PORT_NAME,
        METRICS_EXPORT_PORT_NAME,
        RUNTIME_ENV_AGENT_PORT_NAME,
    )

    class SmallNode(Node):
        """Ray's node, without the services that a dashboard or a cluster needs."""

        def start_monitor(self) -> None:
            """Start no autoscaler."""

        def start_api_server(self, **_: Any) -> None:
            """Start no server of a dashboard."""
            self._webui_url = ""

        def start_log_monitor(self) -> None:
            """Start the reader of logs only if somebody wants them."""
            if with_logs:
                super().start_log_monitor()  # type: ignore[no-untyped-call]

        def start_ray_processes(self) -> None:
            """Start the raylet, for which the agents seem to have started without a port."""
            for name in ports:
                persist_port(self._session_dir, self._node_id, name, NO_PORT)
            super().start_ray_processes()  # type: ignore[no-untyped-call]

    def start(command: list[str], process_type: str, *arguments: Any, **named: Any) -> Any:
        own = raylet_command(command, num_processes, fork_server) if process_type == "raylet" else command
        return start_process(own, process_type, *arguments, **named)

    with ExitStack() as stack:
        stack.enter_context(replaced(node, "Node", SmallNode))
        stack.enter_context(replaced(services, "start_ray_process", start))
        # Otherwise Ray ends the processes started ahead after a second, if they are more than the CPUs.
        yield {"num_workers_soft_limit": max(num_cpus, num_processes)}


def raylet_command(command: Sequence[str], num_processes: int, fork_server: Path | None = None) -> list[str]:
    """Return the command of a raylet whose agents do nothing, and which starts ``num_processes`` at once.

    ``fork_server``: the socket for requests of processes when they are needed; None: it starts them itself, and ahead.
        ``ray.init`` waits for processes that are started ahead.
    """
    stand_in = _script(AGENT)
    return [_option_of_raylet(word, num_processes, stand_in, fork_server) for word in command]


def _script(*arguments: str) -> str:
    """Return the command of the script, which needs only Python's own library."""
    return subprocess.list2cmdline([sys.executable, "-I", "-S", str(raylet_script.__file__), *arguments])


def _option_of_raylet(word: str, num_processes: int, stand_in: str, fork_server: Path | None) -> str:
    name, equals, value = word.partition("=")
    option = name + equals
    interpreter = subprocess.list2cmdline([sys.executable])
    if option in _AGENTS:
        return option + stand_in
    if option == _AHEAD:
        return f"{option}{num_processes if fork_server is None else 0}"
    if option == _AT_ONCE:
        return f"{option}{max(int(value), num_processes)}"
    if option == _PROCESS and fork_server is not None and value.startswith(f"{interpreter} "):
        return f"{option}{_script(START, str(fork_server))}{value.removeprefix(interpreter)}"
    return word


class _PlainActorClasses:
    """Tune's cache of actor classes, without the runtime environment that Tune gives each."""

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def get(self, trainable_class: type) -> Any:
        """Return the actor class of a Trainable."""
        import ray

        if trainable_class not in self._made:
            self._made[trainable_class] = ray.remote(trainable_class)
        return self._made[trainable_class]


@contextmanager
def actors_of_idle_processes() -> Iterator[None]:
    """Let trials that Tune starts in the body, and their workers, be actors of processes that Ray has ready.

    Tune passes environment variables to its trials as a runtime environment. Only a new process can have one. An agent
    of Ray's prepares it, for the trial and then for each of its workers. On one machine these processes inherit the
    variables anyway.
    """
    if IDLE_PROCESSES.why_off() is not None:
        yield
        return
    from ray.tune.execution import tune_controller

    with replaced(tune_controller, "_ActorClassCache", _PlainActorClasses):
        yield


@contextmanager
def callbacks_not_counted() -> Iterator[None]:
    """Keep Tune in the body from counting callbacks for Ray's usage statistics, which rlexp turns off.

    For that, Tune imports MLflow, Weights & Biases and others if they are installed, which takes a second or more.
    """
    if UNCOUNTED_CALLBACKS.why_off() is not None:
        yield
        return
    from ray.air._internal import usage

    with replaced(usage, "tag_callbacks", lambda callbacks: False):
        yield


def job_without_folders() -> JobConfig:
    """Return a job whose processes search only Python's own path.

    Ray would put the current folder before it, and a file ``torch.py`` there would be imported as torch. The folders of
    the user's modules are sent with the envs that need them.
    """
    from ray.job_config import JobConfig

    if PLAIN_PATH.why_off() is not None:
        return JobConfig()

    class JobWithoutFolders(JobConfig):
        def _serialize(self) -> str:
            self._py_driver_sys_path = []
            return super()._serialize()

    return JobWithoutFolders()
