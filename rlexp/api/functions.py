"""The functions that ``import rlexp`` offers: what the commands do, for programs and notebooks.

Where a command ends with an error and an exit code, these raise an RlexpError. Importing this loads nothing but
Python's own. The parameters of a training are options of :class:`rlexp.tuning.request.TrainingRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlexp.api.arguments import checked_arguments
from rlexp.errors import UsageError

if TYPE_CHECKING:
    from rlexp.agents.trained_policy import TrainedPolicy
    from rlexp.api.experiments import LoadedExperiments
    from rlexp.api.runs import Run
    from rlexp.board.client.submit import Submitted
    from rlexp.compare.table import Results

Experiments = str | Path | Sequence[str | Path] | Mapping[str, Any]
"""A file, several files, or experiments by name."""


@checked_arguments
def load(
    experiments: Experiments,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    imports: Sequence[str] = (),
    allow_unknown: bool = False,
) -> LoadedExperiments:
    """Read experiments and check them as ``rlexp check`` does; nothing is trained or created.

    Args:
        experiments: an experiment file, several files, or a dict as in a file: ``{"a": {"run": "DQN", "env": ...}}``.
            A dict may have numbers and arrays of NumPy, tuples, and classes (``"env": MyEnv``) of a module.
        overrides: ``key.path=value`` each, for every experiment, as with ``-o``.
        seed: as the override ``config.seed``.
        imports: modules that register envs.
        allow_unknown: leave unknown keys out, with a notice each.

    Raises:
        ConfigError: every problem, each with its place: ``file:line:column``, or ``experiments["a"]["config"]["lr"]``.

    """
    from rlexp.api.experiments import load_experiments

    return load_experiments(experiments, overrides, seed, imports, allow_unknown)


@checked_arguments
def run(
    experiments: Experiments | None = None,
    *,
    env: str | type | None = None,
    algo: str | None = None,
    stop: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    out: str | Path = "results",
    name: str | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    imports: Sequence[str] = (),
    names: Sequence[str] = (),
    allow_unknown: bool = False,
    fit: bool = False,
    address: str | None = None,
    quiet: bool = False,
    debug: bool = False,
) -> Run:
    """Train every trial of some experiments and wait for the end, as ``rlexp run`` does.

    The training has a process of its own, which is started anew by each call: neither Ray nor torch is loaded here, the
    program needs no ``if __name__ == "__main__":``, and it works in a notebook and in any thread.

    Args:
        experiments: an experiment file, several files, or a dict, see :func:`rlexp.load`. Classes of a
            notebook's cells, or of the program, are written to a module in ``out``, with all that they use.
        env: instead of ``experiments``, the env of a single experiment: its name, or a class. Settings that fit the env
            are chosen as for ``rlexp run --algo --env``, and the run keeps them as ``experiment.yaml``.
        algo: the agent of this experiment: ``"PPO"``.
        stop: when it ends, instead of the chosen ``stop``: ``{"timesteps_total": 50_000}``.
        config: other keys, as in a file under ``config``.
        out: where the run's directory is made.
        name: the name of that directory; None: the experiment's.
        overwrite: whether a finished run of the same name is replaced.
        overrides: ``key.path=value`` each, for every experiment, as with ``-o``.
        seed: as the override ``config.seed``.
        imports: modules that register envs.
        names: ``NAME=module:Class`` each, as with ``--map``.
        allow_unknown: leave unknown keys out, with a notice each.
        fit: reduce workers, replay shards, GPUs and replay to this machine or cluster.
        address: ``HOST:PORT`` of a Ray cluster; None: of ``RLEXP_ADDRESS`` or ``RAY_ADDRESS``, else an own Ray.
        quiet: print nothing.
        debug: also show what Ray prints.

    Returns:
        The run: its directory, its trials, their results and policies.

    Raises:
        ConfigError: every problem of the experiments; nothing was created, as after a UsageError or ResourceError.
        TrialError: trials failed, or the run was stopped. If trials failed, its ``run`` has the results.
        RlexpError: Ray did not start, or was lost.
        KeyboardInterrupt: on Ctrl-C in the main thread, once the trials have saved and ended.

    """
    options = locals()
    single = {name: options.pop(name) for name in ("env", "algo", "stop", "config")}
    from rlexp.api.client import train
    from rlexp.api.experiments import SingleExperiment

    if experiments is None:
        options["experiments"] = SingleExperiment(**single)
    elif given := [name for name, value in single.items() if value is not None]:
        raise UsageError(f"{given[0]} is given beside experiments", "give experiments, or env, algo, stop and config")
    return train("run", options)


@checked_arguments
def sweep(
    experiments: Experiments,
    *,
    allow_failures: int = 0,
    out: str | Path = "results",
    name: str | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    imports: Sequence[str] = (),
    names: Sequence[str] = (),
    allow_unknown: bool = False,
    fit: bool = False,
    address: str | None = None,
    quiet: bool = False,
    debug: bool = False,
) -> Run:
    """Search the hyperparameters of one experiment and wait for the end, as ``rlexp sweep`` does.

    Its ``search`` section says how, or overrides such as ``search.num_samples=20``. For the rest see :func:`rlexp.run`.

    Args:
        experiments: an experiment file with one experiment, or a dict with one.
        allow_failures: how many trials may fail before it counts as failed.
        out: where the sweep's directory is made.
        name: the name of that directory.
        overwrite: whether a finished sweep of the same name is replaced.
        overrides: ``key.path=value`` each.
        seed: as the override ``config.seed``.
        imports: modules that register envs.
        names: ``NAME=module:Class`` each, as with ``--map``.
        allow_unknown: leave unknown keys out, with a notice each.
        fit: reduce what does not fit this machine or cluster.
        address: the address of a Ray cluster.
        quiet: print nothing.
        debug: also show what Ray prints.

    Returns:
        The sweep: ``directory`` has ``trials.csv`` and ``best.yaml``, which ``rlexp.run`` takes.

    """
    options = locals()
    from rlexp.api.client import train

    return train("sweep", options)


@checked_arguments
def resume(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    imports: Sequence[str] = (),
    allow_env: Sequence[str] = (),
    allow_class: Sequence[str] = (),
    allow_storage: Sequence[str] = (),
    address: str | None = None,
    quiet: bool = False,
    debug: bool = False,
) -> Run:
    """Continue a run or sweep that was stopped or killed, as ``rlexp resume`` does, and wait for its end.

    Args:
        path: the directory of the run.
        overrides: such as ``stop.timesteps_total=2e6``, which sets a later stop.
        imports: modules that it may import, if you have not trained with them.
        allow_env: envs of modules (``module:Class``) that it may play.
        allow_class: classes (``module:Class``) that its config may name.
        allow_storage: storages that it may use.
        address: the address of a Ray cluster, see :func:`rlexp.run`.
        quiet: print nothing.
        debug: also show what Ray prints.

    Raises:
        ResumeError: ``path`` is not a run, is in use or damaged, has nothing left to do, or names code or a storage
            that is not allowed.

    """
    options = locals()
    from rlexp.api.client import train

    return train("resume", options)


@checked_arguments
def load_policy(
    path: str | Path,
    *,
    explore: bool = False,
    seed: int | None = None,
    imports: Sequence[str] = (),
    allow_env: Sequence[str] = (),
    allow_class: Sequence[str] = (),
    allow_storage: Sequence[str] = (),
) -> TrainedPolicy:
    """Return a trained policy, which acts on observations of its env.

    Ray is not loaded, and torch only for networks that are more than fully connected layers.

    Args:
        path: a checkpoint; or a trial or run, whose best checkpoint is loaded.
        explore: draw actions as evaluations do that explore; else they are greedy.
        seed: the seed of these draws; None: the seed of the run, so that each load draws the same.
        imports: modules that register its env. Those that the run names are imported too if they are named here, or
            are files that you have trained with; so are the classes that it names.
        allow_env: envs of modules (``module:Class``) that the run may play.
        allow_class: classes (``module:Class``) that its config may name: wrappers, torsos.
        allow_storage: storages from which its checkpoints may be fetched, if you have not trained with them.

    Raises:
        ResumeError: there is no run, trial or checkpoint, or it names code that is not allowed.
        CheckpointError: the checkpoint is damaged.
        UsageError: its env cannot be made here.

    """
    from rlexp.agents.trained_policy import load_trained_policy
    from rlexp.user_code.trusted_code import TrustedCode

    trusted = TrustedCode.of(imports, allow_env, allow_class, allow_storage)
    return load_trained_policy(Path(path), explore, seed, trusted)


@checked_arguments
def results(*paths: str | Path) -> Results:
    """Return the results of runs or trials as a table: one row for each iteration of each trial.

    Args:
        paths: directories of runs or trials; also of runs that have not ended.

    Raises:
        UsageError: there is no run or trial.

    """
    from rlexp.compare.table import read_results

    return read_results([Path(path) for path in paths])


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
        board: its address; None: the value of ``RLEXP_BOARD``.
        overrides: ``key.path=value`` each, as with ``-o``.
        out: where the run's directory is made.
        name: the name of that directory; None: the experiment's.
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
    options = locals()
    from rlexp.commands.submit import submit_or_raise

    return submit_or_raise(options)


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
        url: the board's address; None: the value of ``RLEXP_BOARD``.
        once: end with the first task.
        duration: leave after this time, such as ``30s``, ``10m`` or ``2h``; None: never.
        task: the id of the only task that is joined; None: any.
        processes: how many actors or trainers, each a process.
        as_trainer: train submitted tasks instead of playing, which loads Ray and PyTorch in another process.
        out: where a trainer keeps the runs of its tasks; None: ``results``.
        cpus: a trainer leaves tasks alone that need more; None: than this machine has.
        max_memory: a trainer leaves tasks alone whose replay needs more than this, such as ``8GB``.
        allow_env: envs that tasks may name although they are classes or have an ``env_config``.
        allow_class: classes (``module:Class``) that their configs may name: wrappers, torsos, callbacks.
        imports: modules that tasks may import.
        token: ``@FILE`` with an actor's join token; None: what ``RLEXP_BOARD_TOKEN`` names.
        keys: ``@FILE`` with a trainer's master key; None: what ``RLEXP_BOARD_MASTER`` names.
        queue: the address of RabbitMQ or MQTT, over which fragments go; None: the value of ``RLEXP_QUEUE``.
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
