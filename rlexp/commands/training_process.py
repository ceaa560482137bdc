"""``rlexp join --as trainer``: leads a submitted task, and trains it by a command of its own, which has the Ray."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlexp.agents.board.joiner import ShouldStop
from rlexp.agents.board.submitted_task import FILE_NAME, TrainerLimits, training_obstacle
from rlexp.commands.boards import NONE
from rlexp.commands.joined_processes import PARENT_VARIABLE
from rlexp.errors import ResumeError, TrialError, UsageError
from rlexp.files import read_regular
from rlexp.joined_actors.outbox import SeatEnd
from rlexp.processes.child import Child, kill_child, own_environment, own_program, start_child
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.directories import numbered
from rlexp.runs.run_name import derived_name
from rlexp.runs.run_record import EXPERIMENT_FILE, read_run_record
from rlexp.transport.address import BoardAddress
from rlexp.transport.board import Board, Lead, Task
from rlexp.transport.board_errors import BoardError, BoardLostError
from rlexp.tuning.board.handed_task import TASK_VARIABLE, HandedTask
from rlexp.user_code.trusted_code import Obstacle, TrustedCode

TASKS_FOLDER: Final = "tasks"
"""Of the runs of tasks in OUT, apart from the runs of the user."""
LEASE_S: Final = 15.0
"""Of the lead until the process that trains has it."""
START_S: Final = 180.0
"""How long the lead is kept for a process that starts; then it must keep it itself."""
END_TIMEOUT_S: Final = 60.0
"""How long it may take to leave a checkpoint once it was asked to stop; then it is killed."""
_MOST_JUDGED: Final = 1000
_RENEW_S: Final = 3.0
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class TrainingOptions:
    """Where and how tasks are trained here."""

    address: BoardAddress
    out: Path
    limits: TrainerLimits
    words: Sequence[str] = ()
    """Options that the command that trains is given too."""


class TaskTrainer:
    """A Player of submitted tasks, see :class:`~rlexp.agents.board.joiner.Player`; used by one thread."""

    def __init__(
        self, board: Board, member: str, trusted: TrustedCode, options: TrainingOptions, report: Callable[[str], None]
    ) -> None:
        """``report`` is called with a sentence about what happens."""
        self._board, self._member, self._trusted, self._options = board, member, trusted, options
        self._report = report
        self._judged: dict[str, tuple[str, Obstacle | None]] = {}
        """By the ids of tasks, their files and what keeps them from being trained here: they are looked at often."""
        self._runs = options.out / TASKS_FOLDER
        if (self._runs / RUN_FILE).exists():
            raise UsageError(f"{self._runs} is a run, and runs of tasks belong there", "choose another --out")

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be trained here; None where it may. Reading a file may take a second."""
        if self._judged.get(task.id, (None, None))[0] != task.file:
            if len(self._judged) >= _MOST_JUDGED:
                self._judged.clear()
            self._judged[task.id] = (task.file, training_obstacle(task, self._trusted, self._options.limits))
        return self._judged[task.id][1]

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        """Train the task until it ends; return None where another trainer was faster.

        Raises TrialError where it failed, or cannot be trained here.
        """
        member = f"{self._member}-{secrets.token_hex(2)}"  # another one for each try: a former one of ours is fenced
        lead = self._board.lead(task.id, member, LEASE_S)
        if lead is None:
            return None
        folder = self._folder(task)
        self._report(f"trains {task.id} ({task.name}) in {folder}")
        with tempfile.TemporaryDirectory(prefix="rlexp-task-") as temporary:
            file = Path(temporary, FILE_NAME)
            file.write_text(task.file, encoding="utf-8")
            code, is_stopped = self._train(lead, self._command(task, folder, file), should_stop)
        if code == 0:
            return SeatEnd.TASK_OVER
        self._give_up(lead)
        if is_stopped:
            return SeatEnd.STOPPED
        raise TrialError(f"the training of {task.id} ended with exit code {code}", f"its files are in {folder}")

    def _folder(self, task: Task) -> Path:
        """Return the run that this machine began for the task, or else a path that nothing has.

        A stranger chooses the id: what is found by it is the task's only where its record says so.
        """
        paths = (self._runs / name for name in numbered(derived_name(task.id)))
        server = self._options.address.server
        return next(path for path in paths if not os.path.lexists(path) or _is_run_of(path, task, server))

    def _command(self, task: Task, folder: Path, file: Path) -> list[str]:
        """Return what trains the task: a run of its own, or the one that this machine began earlier."""
        options, shown = self._options, self._options.address.without_passwords()
        # The file is a stranger's: it does not decide what this machine's accounts send.
        common = ["--board", str(shown), "--queue", str(shown.queue or NONE), "--track", "none", *options.words]
        rlexp = own_program("rlexp")
        imports = [word for module in self._trusted.modules.imports for word in ("--import", module)]
        if folder.exists():  # what it names was allowed to this command, and is not remembered
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
            return _wait(process, _Renewal(self._board, lead), should_stop)
        finally:
            kill_child(process)

    def _give_up(self, lead: Lead) -> None:
        with suppress(BoardLostError):  # then its lease runs out
            self._board.give_up(lead)


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


class _Renewal:
    """Keeps the lead while the process starts that is to keep it itself."""

    def __init__(self, board: Board, lead: Lead) -> None:
        self._board, self._lead = board, lead
        self._ends_s = time.monotonic() + START_S
        self._due_s = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if self._due_s <= now < self._ends_s:
            self._due_s = now + _RENEW_S
            with suppress(BoardError):
                self._board.lead(self._lead.task_id, self._lead.member, LEASE_S, self._lead.epoch)


def _wait(process: Child, renew: _Renewal, should_stop: ShouldStop) -> tuple[int, bool]:
    deadline_s: float | None = None
    while process.poll() is None:
        if should_stop() and deadline_s is None:
            deadline_s = time.monotonic() + END_TIMEOUT_S
            process.send_signal(signal.SIGINT)
        if deadline_s is None:
            renew()
        elif time.monotonic() > deadline_s:
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
    return process.returncode, deadline_s is not None
