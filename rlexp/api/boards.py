"""``rlexp.submit`` and ``rlexp.join``: the commands of the same names, for programs and notebooks.

Where a command ends with an error and an exit code, these raise an RlexpError. Importing this loads nothing but
Python's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlexp.api.arguments import checked_arguments

if TYPE_CHECKING:
    from rlexp.board.client.submit import Submitted


@checked_arguments
def submit(
    file: str | Path | None = None,
    *,
    board: str | None = None,
    overrides: Sequence[str] = (),
    out: str | Path = "results",
    name: str | None = None,
    overwrite: bool = False,
    seed: int | None = None,
    imports: Sequence[str] = (),
    evaluate: int | None = None,
    wait: bool = True,
    attach: str | None = None,
    allow_env: Sequence[str] = (),
    allow_class: Sequence[str] = (),
    token: str | None = None,
    insecure: bool = False,
    quiet: bool = False,
) -> Submitted:
    """Put an experiment on a board for a trainer that waits there, and wait for its results, as ``rlexp submit`` does.

    Args:
        file: an experiment file with one trial.
        board: its address; None: that of the environment variable ``RLEXP_BOARD``.
        overrides: ``key.path=value`` each, as with ``-o``.
        out: where the run's directory is made.
        name: of that directory; None: the experiment's.
        overwrite: whether a finished run of the same name is replaced.
        seed: as the override ``config.seed``.
        imports: modules that register its env; the trainer must allow them too.
        evaluate: episodes that are played here with the newest weights, again and again; None: none.
        wait: whether to return at the end of the task; else as soon as it is on the board.
        attach: the id of a task that was submitted before, instead of ``file``.
        allow_env: with ``attach``: envs that may be played although they are classes or have an ``env_config``.
        allow_class: with ``attach``: classes (``module:Class``) that its config may name.
        token: ``@FILE`` with the token by which a trainer's signatures are verified; None: what ``RLEXP_BOARD_TOKEN``
            names.
        insecure: allow a public address without TLS.
        quiet: print nothing.

    Returns:
        The task's id, and where its results are.

    Raises:
        RlexpError: what is wrong with the file or the options (UsageError), with the board (BoardError), or why the
            task failed or was cancelled (TrialError).
        KeyboardInterrupt: on Ctrl-C; the task goes on.

    """
    import io
    import sys

    from rlexp.board.client.run import RunPlace
    from rlexp.board.client.submit import SubmitOptions, Submitter
    from rlexp.board.messages.tokens import client_token
    from rlexp.commands.board_keys import required_board, take_token
    from rlexp.commands.submit import check_options, checked_plan, submit_or_attach
    from rlexp.config.load import LoadOptions
    from rlexp.rollout.evaluation import never
    from rlexp.terminal.displays import QuietDisplay
    from rlexp.terminal.submissions import TaskDisplay

    address = required_board(board, insecure, 'rlexp.submit(FILE, board="redis://HOST:6379")')
    place = RunPlace(Path(out), name, overwrite, sys.argv)
    options = SubmitOptions(place, evaluate, wait, client_token(take_token(token)))
    check_options(file, attach, not wait, evaluate)
    plan = None if file is None else checked_plan(Path(file), overrides, seed, LoadOptions(tuple(imports)))
    with QuietDisplay(io.StringIO()) if quiet else TaskDisplay(sys.stdout, sys.stderr) as display:
        submitter = Submitter(address, options, display, never)
        return _ended_well(submit_or_attach(submitter, plan, attach, allow_env, allow_class))


def _ended_well(done: Submitted) -> Submitted:
    """Return a task that has ended, or goes on; raises TrialError where it failed or was cancelled."""
    from rlexp.board.servers.board import TaskStatus
    from rlexp.errors import TrialError

    if done.status not in (None, TaskStatus.ENDED):
        hint = None if done.directory is None else f"what came of it is in {done.directory}"
        raise TrialError(f"task {done.task_id} is {done.status}: {done.reason or 'no reason is given'}", hint)
    return done


@checked_arguments
def join(
    url: str | None = None,
    *,
    once: bool = False,
    duration: str | None = None,
    task: str | None = None,
    processes: int = 1,
    as_trainer: bool = False,
    out: str | Path | None = None,
    cpus: int | None = None,
    max_memory: str | None = None,
    allow_env: Sequence[str] = (),
    allow_class: Sequence[str] = (),
    imports: Sequence[str] = (),
    token: str | None = None,
    keys: str | None = None,
    queue: str | None = None,
    insecure: bool = False,
    quiet: bool = False,
) -> None:
    """Play for tasks on a board, or train those that were submitted there, as ``rlexp join`` does.

    Args:
        url: the board's address; None: that of the environment variable ``RLEXP_BOARD``.
        once: end with the first task.
        duration: leave after this time, such as ``30s``, ``10m`` or ``2h``; None: never.
        task: the id of the only task that is joined; None: any.
        processes: how many actors or trainers, each a process.
        as_trainer: train submitted tasks instead of playing, which loads Ray and PyTorch in another process.
        out: where a trainer keeps the runs of its tasks; None: ``results``.
        cpus: a trainer leaves tasks alone that need more; None: those of the machine.
        max_memory: a trainer leaves tasks alone whose replay needs more than this, such as ``8GB``.
        allow_env: envs that tasks may name although they are classes or have an ``env_config``.
        allow_class: classes (``module:Class``) that their configs may name: wrappers, torsos, callbacks.
        imports: modules that tasks may import.
        token: ``@FILE`` with an actor's join token; None: what ``RLEXP_BOARD_TOKEN`` names.
        keys: ``@FILE`` with a trainer's master key; None: what ``RLEXP_BOARD_MASTER`` names.
        queue: the address of RabbitMQ or MQTT, over which fragments go; None: that of ``RLEXP_QUEUE``, if it is set.
        insecure: allow a public address without TLS.
        quiet: print nothing.

    Raises:
        RlexpError: what is wrong with the options (UsageError), the board (BoardError) or a task (TrialError).
        KeyboardInterrupt: on Ctrl-C, after the seat was given back.

    """
    options = locals()
    from rlexp.commands.join import JoinRole, join_or_raise

    options["role"] = JoinRole.TRAINER if options.pop("as_trainer") else JoinRole.ACTOR
    options["out"] = None if out is None else Path(out)
    options |= {"allow_env": list(allow_env), "allow_class": list(allow_class), "imports": list(imports)}
    join_or_raise(options)
