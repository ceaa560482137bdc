"""``rlexp join --as trainer``: leads a submitted task, and trains it in a process of its own, which has Ray.

The experiment comes from a stranger. The loader of experiment files reads it and makes only checked keys. Keys that
would reach files, servers or modules of this machine, or more of it than is allowed, are refused.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.demands import Spaces, bytes_in_replay, number_excess, trainer_excess
from rlexp.board.messages.address import NONE, TASK_VARIABLE, BoardAddress, HandedTask
from rlexp.board.messages.basics import BoardError, BoardLostError, Task
from rlexp.board.servers.board import Board, Lead, TaskSummary
from rlexp.board.task import SUBMITTED_FILE, submitted_plan
from rlexp.cluster.room.machine import Cluster, ClusterNode, Machine, this_machine
from rlexp.cluster.room.packing import cluster_shortfalls
from rlexp.cluster.room.shortfalls import bytes_per_transition, gib, shortfalls
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import required_cpus
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.errors import ConfigError, ResumeError, RlexpError, TrialError, UsageError
from rlexp.files import read_regular
from rlexp.processes.child import PARENT_VARIABLE, Child, kill_child, own_environment, own_program, start_child
from rlexp.processes.locks import RUN_FILE
from rlexp.rollout.evaluation import ShouldStop
from rlexp.runs.directories import derived_name, numbered
from rlexp.runs.record import EXPERIMENT_FILE, read_run_record
from rlexp.user_code.trusted_code import Obstacle, TrustedCode

_LONGEST_MESSAGE: Final = 300
_UNLIMITED: Final = 1 << 62
_WHAT_IS_ALLOWED: Final = "--cpus and --max-memory say what tasks may use"
TASKS_FOLDER: Final = "tasks"
"""Folder of the tasks' runs in OUT, apart from the runs of the user."""
LEASE_S: Final = 15.0
"""Seconds of the lead's lease until the process that trains has it."""
START_S: Final = 180.0
"""Seconds for which the lead is kept for a starting process; then that process must keep it."""
END_TIMEOUT_S: Final = 60.0
"""Seconds that a process may take to leave a checkpoint after it was asked to stop; then it is killed."""
_MOST_JUDGED: Final = 1000
_RENEW_S: Final = 3.0
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class TrainerLimits:
    """Limits on what tasks may use of this machine, or of a cluster."""

    cpus: int | None = None
    """Number of CPUs; None: all that this process may use."""
    max_memory: int | None = None
    """Bytes of replay; None: the machine's memory."""
    in_cluster: bool = False
    """Whether tasks are trained in a cluster, whose room the run itself finds out."""


def training_obstacle(task: Task, trusted: TrustedCode, limits: TrainerLimits) -> Obstacle | None:
    """Return why the task may not be trained here; None if it may. Only its env is made, if nothing else is wrong."""
    if not task.file:
        return Obstacle("was not submitted", "its trainer has the experiment; rlexp resume continues it there")
    try:
        plan = submitted_plan(task, trusted.modules)
    except ConfigError as error:
        what = "; ".join(problem.message for problem in error.problems)[:_LONGEST_MESSAGE]
        return Obstacle(f"cannot be read: {what}", "rlexp run --dry-run shows what is wrong with an experiment")
    if plan.sweeps or len(plan.trials) != 1:
        return Obstacle("is a sweep or has several variants", "submit one variant")
    experiment = plan.trials[0].experiment
    return next(_obstacles(experiment, trusted, limits), None)


def _obstacles(experiment: Experiment, trusted: TrustedCode, limits: TrainerLimits) -> Iterator[Obstacle]:
    config = experiment.config
    for key, reaches in (("restore", "a folder of this machine"), ("storage", "a server, with this machine's rights")):
        if getattr(experiment, key) is not None:
            yield Obstacle(f"names {reaches} with the key {key}", f"submit it without {key}")
    arguments = {**config.env_config, **config.evaluation_config.env_config}
    foreign = trusted.obstacle(experiment.env, arguments, (), experiment.config.user_parts())
    if foreign is not None:
        yield foreign
    if config.board_obstacle is not None:
        yield Obstacle(f"cannot be joined by actors: {config.board_obstacle}", "train it with rlexp run")
    excess = number_excess(experiment.model_dump(mode="json"))
    if excess is not None:
        yield Obstacle(f"asks for too much: {excess}", "submit it with a lower number")
    yield from _beyond(experiment, limits)
    memory = limits.max_memory if limits.in_cluster else _allowed(limits).memory_total
    if memory is not None:
        yield from _beyond_by_spaces(experiment, trusted, limits, memory)


def _beyond(experiment: Experiment, limits: TrainerLimits) -> Iterator[Obstacle]:
    """Yield the experiment's needs beyond what it may use, and beyond its reserved resources or the memory."""
    if limits.in_cluster:
        config = experiment.config
        cpus, memory = limits.cpus or _UNLIMITED, limits.max_memory or _UNLIMITED
        resources = dict.fromkeys(config.custom_resources_per_worker, float(_UNLIMITED))
        node = ClusterNode("", Machine(cpus, _UNLIMITED, memory, memory), resources)
        problems = cluster_shortfalls(experiment, Cluster((node,)))
    else:
        problems = shortfalls(experiment, _allowed(limits))
    for problem in problems:
        yield Obstacle(f"does not fit here: {problem.message}", _WHAT_IS_ALLOWED)
    yield from _beyond_machine(experiment, limits)


def _beyond_machine(experiment: Experiment, limits: TrainerLimits, spaces: Spaces | None = None) -> Iterator[Obstacle]:
    """Yield what the trainer itself needs beyond this machine; with the ``spaces`` of its env, more is known."""
    cpus: float = this_machine().cpus
    memory = this_machine().memory_total
    if limits.in_cluster:
        cpus, memory = required_cpus(experiment), _UNLIMITED
    excess = trainer_excess(experiment.config, limits.cpus or cpus, memory, spaces)
    if excess is not None:
        yield Obstacle(f"asks for too much: {excess}", "submit it with lower numbers")


def _allowed(limits: TrainerLimits) -> Machine:
    """Return what of this machine a task may use."""
    machine = this_machine()
    return replace(
        machine,
        cpus=machine.cpus if limits.cpus is None else min(limits.cpus, machine.cpus),
        memory_total=min(limits.max_memory or machine.memory_total, machine.memory_total),
    )


def _beyond_by_spaces(
    experiment: Experiment, trusted: TrustedCode, limits: TrainerLimits, memory: int
) -> Iterator[Obstacle]:
    """Yield the needs of replay and of training that the env's own spaces show; this makes the env."""
    config = experiment.config
    try:
        spaces = spaces_of(env_config_of(experiment.env, config, trusted.modules))
    except RlexpError as error:
        yield Obstacle(f"plays an env that cannot be made here: {error.message}", error.hint or "")
        return
    if config.replay is not None and bytes_per_transition(experiment) is None:
        needed = bytes_in_replay(config, *spaces)
        if needed > memory:
            yield Obstacle(f"may need {gib(needed)} for replay, and {gib(memory)} are allowed", _WHAT_IS_ALLOWED)
    yield from _beyond_machine(experiment, limits, spaces)


@dataclass(frozen=True)
class TrainingOptions:
    """The place and the options of training tasks here."""

    address: BoardAddress
    out: Path
    limits: TrainerLimits
    words: Sequence[str] = ()
    """Options for the command that trains."""


class TaskTrainer:
    """A Player of submitted tasks, see :class:`~rlexp.board.actor.joiner.Player`; used by one thread."""

    nothing_wanted = "no submitted task waits for a trainer; waiting"

    def __init__(
        self, board: Board, member: str, trusted: TrustedCode, options: TrainingOptions, report: Callable[[str], None]
    ) -> None:
        self._board, self._member, self._trusted, self._options = board, member, trusted, options
        self._report = report
        self._judged: dict[str, tuple[str, Obstacle | None]] = {}
        """File and obstacle of each task by its id, as tasks are checked often."""
        self._runs = options.out / TASKS_FOLDER
        if (self._runs / RUN_FILE).exists():
            raise UsageError(f"{self._runs} is a run, and runs of tasks belong there", "choose another --out")

    @staticmethod
    def wants(summary: TaskSummary) -> bool:
        """Return whether a submitted task waits for a trainer, whether its first or a later one."""
        return summary.is_submitted and not summary.status.is_over and summary.trainer is None

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be trained here; None if it may. Reading a file may take a second."""
        if self._judged.get(task.id, (None, None))[0] != task.file:
            if len(self._judged) >= _MOST_JUDGED:
                self._judged.clear()
            self._judged[task.id] = (task.file, training_obstacle(task, self._trusted, self._options.limits))
        return self._judged[task.id][1]

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        """Train the task until it ends; return None if another trainer was faster.

        Raises TrialError if it failed, or cannot be trained here.
        """
        member = f"{self._member}-{secrets.token_hex(2)}"  # new for each try: our earlier one is fenced
        lead = self._board.lead(task.id, member, LEASE_S)
        if lead is None:
            return None
        folder = self._folder(task)
        self._report(f"trains {task.id} ({task.name}) in {folder}")
        with tempfile.TemporaryDirectory(prefix="rlexp-task-") as temporary:
            file = Path(temporary, SUBMITTED_FILE)
            file.write_text(task.file, encoding="utf-8")
            code, is_stopped = self._train(lead, self._command(task, folder, file), should_stop)
        if code == 0:
            return SeatEnd.TASK_OVER
        with suppress(BoardLostError):  # then its lease expires
            self._board.give_up(lead)
        if is_stopped:
            return SeatEnd.STOPPED
        raise TrialError(f"the training of {task.id} ended with exit code {code}", f"its files are in {folder}")

    def _folder(self, task: Task) -> Path:
        """Return the run that this machine began for the task, or else an unused path.

        A stranger chooses the id, so a run found by the id belongs to the task only if its record says so.
        """
        paths = (self._runs / name for name in numbered(derived_name(task.id)))
        server = self._options.address.server
        return next(path for path in paths if not os.path.lexists(path) or _is_run_of(path, task, server))

    def _command(self, task: Task, folder: Path, file: Path) -> list[str]:
        """Return the command that trains the task: a new run, or the one that this machine began earlier."""
        options, shown = self._options, self._options.address.without_passwords()
        # The file comes from a stranger, so it does not decide what this machine's accounts send.
        common = ["--board", str(shown), "--queue", str(shown.queue or NONE), "--track", "none", *options.words]
        rlexp = own_program("rlexp")
        imports = [word for module in self._trusted.modules.imports for word in ("--import", module)]
        if folder.exists():  # this command was allowed to import what it names, and that is not remembered
            envs = [word for env in sorted(self._trusted.envs) for word in ("--allow-env", env)]
            classes = [word for name in sorted(self._trusted.classes) for word in ("--allow-class", name)]
            return [*rlexp, "resume", str(folder), *imports, *envs, *classes, *common]
        return [*rlexp, "run", str(file), "--out", str(folder.parent), "--name", folder.name, *imports, *common]

    def _train(self, lead: Lead, command: Sequence[str], should_stop: ShouldStop) -> tuple[int, bool]:
        """Run the command to its end; return its exit code, and whether it was asked to stop.

        It has a group of its own: a terminal sends it no signals.
        """
        handed = HandedTask(lead.task_id, lead.epoch, os.getpid(), lead.member)
        environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
        environment = own_environment(environment) | {TASK_VARIABLE: handed.to_text()}
        process = start_child(command, environment=environment)
        try:
            return self._wait(process, lead, should_stop)
        finally:
            kill_child(process)

    def _wait(self, process: Child, lead: Lead, should_stop: ShouldStop) -> tuple[int, bool]:
        """Keep the lead until the starting process keeps it itself, and wait for the end of the process."""
        renewed_until_s, due_s, deadline_s = time.monotonic() + START_S, 0.0, math.inf
        while process.poll() is None:
            now = time.monotonic()
            if should_stop() and deadline_s == math.inf:
                deadline_s = now + END_TIMEOUT_S
                process.send_signal(signal.SIGINT)
            if now > deadline_s:
                process.kill()
            elif deadline_s == math.inf and due_s <= now < renewed_until_s:
                due_s = now + _RENEW_S
                with suppress(BoardError):
                    self._board.lead(lead.task_id, lead.member, LEASE_S, lead.epoch)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        return process.returncode, deadline_s < math.inf


def _is_run_of(path: Path, task: Task, server: str) -> bool:
    """Return whether the run at ``path`` was begun for ``task``, on the board at ``server``, with the same file."""
    if path.is_symlink():
        return False
    try:
        begun = read_regular(path / EXPERIMENT_FILE).decode().splitlines()
        trials = read_run_record(path).trials
    except (ResumeError, OSError, ValueError):
        return False
    return begun == task.file.splitlines() and [(each.board, each.board_task) for each in trials] == [(server, task.id)]
