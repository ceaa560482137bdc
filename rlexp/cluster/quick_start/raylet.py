"""The services of our own Ray: only the ones that trials need, without those for a cluster or a dashboard.

``ray.init`` starts seven processes. Trials need two, the registry (``gcs_server``) and the node's manager (``raylet``);
the other five are Python programs that take a fifth of the CPU time until the first result: the autoscaler's monitor,
the dashboard's server and its agent, the monitor of logs, and the agent that prepares runtime environments, which
trials on this machine do not have. The raylet starts no process of a trial before two of them answer. Tune's work for
clusters and for Ray's usage statistics is left out too. Each is done only if Ray has the replaced parts, as
``shortcuts`` says.

Processes start in part of a second if a ForkServer forks them, and share imported modules. The process of a trial
imports Ray, Tune and PyTorch, which takes three seconds of a core, and a worker's process one second. The fork server
imports all except Tune once, from when the command still reads its files. Linux only: on other systems, a process that
has loaded some system libraries must not fork.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import rlexp
from rlexp.cluster.quick_start import fork_server_process, raylet_script
from rlexp.cluster.quick_start.raylet_script import AGENT, PID_FILE, START
from rlexp.cluster.shortcuts import IDLE_PROCESSES, PLAIN_PATH, SMALL_SERVICES, UNCOUNTED_CALLBACKS
from rlexp.processes.child import Child, start_child
from rlexp.processes.family import SESSION, SessionFolder

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

    class SmallNode(node.Node):
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

        def kill_all_processes(
            self, check_alive: bool = True, allow_graceful: bool = False, wait: bool = False
        ) -> None:
            """Kill them at once: they block the SIGTERM after which Ray would wait (``session.py``)."""
            super().kill_all_processes(check_alive, wait=wait)

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


MODULES: Final = (
    "numpy",
    "gymnasium",
    "ray._private.workers.default_worker",
    "rlexp.rollout.worker",
    "pyarrow.fs",
    "pandas",
    "fsspec",
    "torch",
    "rlexp.agents.apex.agent",
    "rlexp.agents.dqn.learner",
    "rlexp.runs.keeper",
)
"""Most imports of processes of trials and workers; not Tune, whose import lets Ray draw random numbers."""
_PACKAGES: Final = Path(rlexp.__file__).parents[1]
"""The folder from which this package is imported."""
_FORK_SERVER_END_S: Final = 5.0
_MOST_WAITING: Final = 128
"""Most processes that may wait to be forked."""
_VARIABLES: Final = {
    # setproctitle would overwrite the environment that we search for.
    "SPT_NOENV": "1",
    # PyArrow's allocator would start a thread at import, and a process with threads is not forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # Ray reads only this variable of a raylet's processes at import, and never again. It is the job of a process: none
    # yet, as for all that are started ahead.
    "RAY_JOB_ID": "ffffffff",
}


class ForkServer:
    """Owns the process, and the folder of its session, from construction to ``close``."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        """Start it; it imports ``modules`` and forks processes only after that. Raises OSError."""
        self.folder = SessionFolder()
        self.path = self.folder.path / "fork_server"
        """The socket for requests of processes."""
        try:
            self._process = self._started(modules)
            Path(f"{self.path}{PID_FILE}").write_text(str(self.pid), encoding="ascii")
        except BaseException:
            self.folder.remove()
            raise

    def _started(self, modules: Sequence[str]) -> Child:
        # Also read once: the process with which it ends. It is this one, as the raylet ends with it too.
        variables = {**_VARIABLES, "RAY_RAYLET_PID": str(os.getpid()), SESSION: str(self.folder.path)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.path))
            listener.listen(_MOST_WAITING)
            descriptor, script = listener.fileno(), str(fork_server_process.__file__)
            return start_child(
                [sys.executable, script, str(descriptor), str(_PACKAGES), *modules],
                environment={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                passed=(descriptor,),
            )

    @property
    def pid(self) -> int:
        """Pid of the parent of all forked processes."""
        return self._process.pid

    def close(self) -> None:
        """End it, and remove the folder; idempotent."""
        self._process.kill()
        try:
            self._process.wait(_FORK_SERVER_END_S)
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self.folder.remove()
