"""The Ray of a run: a new one on this machine, or a cluster that is probed first and may have no room yet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlexp.board.trainer.trial import loopback_notices, with_board
from rlexp.cluster.environment import AUTH_MODE, named_modules, named_packages, runtime_env
from rlexp.cluster.joined import JoinedRay
from rlexp.cluster.own import OwnRay
from rlexp.cluster.probe import ClusterReport, Question, ask_for_bundles, probe_cluster
from rlexp.cluster.room.fit import all_fit, check_fits, wait_for_room
from rlexp.cluster.room.machine import Cluster
from rlexp.cluster.session import Session
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan
from rlexp.processes.signals import StopRequest
from rlexp.search.display import Display
from rlexp.tuning.request import TrainingRequest


def probed(address: str, plan: Plan, trials: Sequence[Trial], display: Display, request: TrainingRequest) -> Cluster:
    """Return the nodes of the cluster at ``address``; raises ResourceError if they cannot run ``trials``.

    With ``--wait`` it waits for more nodes, which are probed again. Relevant differences between the nodes are shown.
    """
    question = _question(plan, trials, request)
    with signals_leave_nothing():
        cluster = _examined(address, question, display)
        timeout_s = request.joining.wait_s
        if timeout_s is not None and not all_fit(trials, cluster):
            ask, report = partial(ask_for_bundles, address), partial(display.on_phase, None)
            wait_for_room(trials, cluster, lambda: probe_cluster(address).cluster, ask, timeout_s, report)
            cluster = _examined(address, question, display)
    check_fits(trials, cluster)
    for notice in loopback_notices(request.board, cluster):
        display.on_note(None, notice)
    return cluster


@contextmanager
def signals_leave_nothing() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt in the body, and then do what it would have done without this.

    Otherwise it would end the process at once, and leave a file in the runs' directory or an autoscaler's request.
    """
    request = StopRequest(lambda: None)
    try:
        with request:
            yield
    finally:
        if request.signal is not None:
            os.kill(os.getpid(), request.signal)


def _examined(address: str, question: Question, display: Display) -> Cluster:
    display.on_phase(None, "asking the nodes of the cluster")
    report = probe_cluster(address, question)
    os.environ[AUTH_MODE] = report.auth_mode  # before Ray is imported, which reads it then
    report.refuse_problems()
    for notice in _notices(report):
        display.on_note(None, notice)
    return report.cluster


def make_session(cluster: Cluster, plan: Plan, request: TrainingRequest) -> Session:
    """Return the session of a run, which is not entered yet."""
    address = request.joining.address
    if address is None:
        machine = cluster.nodes[0].machine
        num_processes = first_processes(plan.everything, machine.cpus)
        return OwnRay(machine.cpus, machine.gpus, request.debug, num_processes, request.joining.fork_server)
    return JoinedRay(address, cluster, _runtime_env(plan, plan.everything, request), request.debug)


def first_processes(trials: Sequence[Trial], num_cpus: int) -> int:
    """Return the likely number of processes of the first trials: one each, and one for each of their workers.

    It is only a guess at how many processes Ray starts at once or, if they are not forked, while Tune is imported. At
    most two for each CPU, since more processes delay the start of Ray.
    """
    needed = [1 + trial.experiment.config.num_workers for trial in trials]
    return min(sum(needed), max(num_cpus, min(needed[0], 2 * num_cpus)))


def _question(plan: Plan, trials: Sequence[Trial], request: TrainingRequest) -> Question:
    question = Question(
        modules=named_modules(trials, plan.modules),
        packages=named_packages(trials),
        folders=plan.modules.folders,
        out=request.out,
        runtime_env=_runtime_env(plan, trials, request),
    )
    return with_board(question, request.board)


def _runtime_env(plan: Plan, trials: Sequence[Trial], request: TrainingRequest) -> dict[str, Any]:
    folder = Path.cwd() if request.joining.sends_folder else None
    return runtime_env(named_modules(trials, plan.modules), plan.modules, os.environ, folder, request.out)


def _notices(report: ClusterReport) -> list[str]:
    return [*report.notices, *(notice for node in report.nodes for notice in node.notices)]
