"""Watches the processes of trials between their results: phases, hangs, lost directories and nodes, waits for room.

A process that has died with its node does not count as a failure of its trial; on a cluster, what a trial waits for may
be used by others, or be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial

from rlexp.cluster.nodes import Bundle, ClusterNodes, RayNode
from rlexp.config.keys.trial import Trial
from rlexp.files import read_regular
from rlexp.metrics import RunningClock
from rlexp.processes.locks import OpenFolder
from rlexp.runs.record import RecordedError
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import ERROR_FILE, TRAINING, PhaseWatch
from rlexp.search.display import Display
from rlexp.tuning.assignment import ASSIGNMENT, Assignment

_LOOKS = 3
_BETWEEN_LOOKS_S = 0.4
"""A node that is killed does not lose all of its processes in the same instant."""


class NodeLosses:
    """Owns where each trial's process is, and the failures of the trials that count."""

    def __init__(self, nodes: ClusterNodes, wait: Callable[[float], None] = time.sleep) -> None:
        self._nodes = nodes
        self._wait = wait
        self._node_of: dict[str, RayNode] = {}
        self._may_be_on: dict[str, Sequence[RayNode]] = {}
        """Where a process may be that starts after a loss, until it begins its trial."""
        self._failed_at: dict[str, list[RayNode | None]] = {}
        """The node of each failure that counted when it came."""

    def begin(self, name: str, actor: Any) -> None:
        """Remember where the process of a trial is, an actor that has started."""
        self._node_of.pop(name, None)
        self._may_be_on.pop(name, None)
        with suppress(RayError):  # the head is lost, which the session reports
            node = self._nodes.of_actor(actor)
            if node is not None:
                self._node_of[name] = node

    def node_of(self, name: str) -> RayNode | None:
        """Return the node of the trial's process, or of the last that it had."""
        return self._node_of.get(name)

    def lost_node(self, name: str) -> RayNode | None:
        """Return the node of a trial whose process has just died, None where the node lives.

        Ray declares a node dead after up to half a minute, so that a node is also lost that accepts no connection; and
        one that is drained ends its processes by itself. Takes about a second where the node lives.

        The next process may die before it begins the trial. Then any node is returned that was lost meanwhile.
        """
        node = self._node_of.get(name)
        nodes = self._may_be_on.get(name, [] if node is None else [node])
        for look in range(_LOOKS if nodes else 0):
            if look:
                self._wait(_BETWEEN_LOOKS_S)
            lost = next((node for node in nodes if self._is_lost(node)), None)
            if lost is not None:
                self._node_of[name] = lost
                self._may_be_on[name] = [node for node in self._nodes.nodes() if node.is_alive and node.id != lost.id]
                return lost
        return None

    def count(self, name: str) -> int:
        """Count a failure of a trial; return its number of failures, without those whose node has died since."""
        failed_at = self._failed_at.setdefault(name, [])
        failed_at.append(self._node_of.get(name))
        dead = {node.id for node in self._nodes.nodes() if not node.is_alive}
        failed_at[:] = [node for node in failed_at if node is None or node.id not in dead]
        return len(failed_at)

    def _is_lost(self, node: RayNode) -> bool:
        alive = {each.id for each in self._nodes.nodes() if each.is_alive}
        return node.id not in alive or node.id in self._nodes.draining() or not self._nodes.answers(node)


PATIENCE_S = 3.0
"""How long a trial may wait before that is shown: where there is room, Ray needs a moment too."""
_SECONDS_BETWEEN_LOOKS = 5.0
_ROUNDING = 1e-4
"""Ray counts resources in these parts."""
_UNITS = {"CPU": ("CPU", "CPUs"), "GPU": ("GPU", "GPUs")}


class RoomWatch:
    """Owns since when each trial waits, and what was shown of it."""

    def __init__(self, nodes: ClusterNodes, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._clock = clock
        self._since_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._next_look_s = 0.0

    def news(self, waiting: Mapping[str, Sequence[Bundle]]) -> dict[str, str]:
        """Return what trials wait for where it has changed; ``waiting`` has the bundles of all without a process.

        A trial whose bundles are placed waits for its process to start, which is not shown here.
        """
        now_s = self._clock()
        for name in self._since_s.keys() - waiting.keys():
            self.forget(name)
        for name in waiting:
            self._since_s.setdefault(name, now_s)
        late = [name for name in waiting if now_s - self._since_s[name] >= PATIENCE_S]
        if not late or now_s < self._next_look_s:
            return {}
        self._next_look_s = now_s + _SECONDS_BETWEEN_LOOKS
        available = list(self._nodes.available().values())
        unplaced = [[dict(bundle) for bundle in group] for group in self._nodes.unplaced()]
        late = [name for name in late if [dict(bundle) for bundle in waiting[name] if bundle] in unplaced]
        missing = {name: missing_room(waiting[name], available) or "Ray has not placed it yet" for name in late}
        texts = {name: f"waiting for room: {text}" for name, text in missing.items()}
        found = {name: text for name, text in texts.items() if self._said.get(name) != text}
        self._said |= found
        return found

    def forget(self, name: str) -> None:
        """Forget a trial that does not wait any more."""
        self._since_s.pop(name, None)
        self._said.pop(name, None)


def missing_elsewhere(bundles: Sequence[Bundle], is_on_one: bool, node_id: str, nodes: ClusterNodes) -> str | None:
    """Return what a trial that is on a node would lack on the other nodes if its process ended; None if nothing.

    Its own bundles there count as free: they are when its process has ended. ``is_on_one``: it needs all on one node.
    """
    free = {other: dict(resources) for other, resources in nodes.available().items() if other != node_id}
    wanted = [dict(bundle) for bundle in bundles if bundle]
    for group in nodes.placed():
        if [dict(bundle) for _, bundle in group] == wanted and node_id in {where for where, _ in group}:
            for where, bundle in group:
                for name, amount in bundle.items() if where in free else ():
                    free[where][name] = free[where].get(name, 0.0) + amount
            break
    return missing_room([_sum(bundles)] if is_on_one else bundles, list(free.values()))


def missing_room(bundles: Sequence[Bundle], available: Sequence[Bundle]) -> str | None:
    """Return what bundles lack, the first of them the driver's, on nodes that have so much available; None if nothing.

    The larger ones are placed first, each on the first node that has room, as Ray does.
    """
    free = [dict(node) for node in available]
    driver, others = bundles[0], sorted(bundles[1:], key=lambda bundle: sorted(bundle.values()), reverse=True)
    if not _place(driver, free):
        return f"a node with {amounts(driver)}{' for the driver' if others else ''}"
    unplaced = [bundle for bundle in others if not _place(bundle, free)]
    if not unplaced:
        return None
    what = "process" if len(others) == 1 else "processes"
    return f"{len(unplaced)} of its {len(others)} other {what} ({amounts(unplaced[0])} each)"


def amounts(bundle: Bundle) -> str:
    """Return a bundle in words: ``4 CPUs and 1 GPU``."""
    texts = []
    for name, amount in bundle.items():
        one, several = _UNITS.get(name, (name, name))
        texts.append(f"{amount:g} {one if amount == 1 else several}")
    return " and ".join(texts) or "no resources"


def _sum(bundles: Sequence[Bundle]) -> Bundle:
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for bundle in bundles for name in bundle}


def _place(bundle: Bundle, free: list[dict[str, float]]) -> bool:
    for node in free:
        if all(node.get(name, 0.0) + _ROUNDING >= amount for name, amount in bundle.items()):
            for name, amount in bundle.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False


LOST_AFTER_S = 1.0
"""How long a trial's directory must be missing before the trial is ended."""
_FOLDER_LOST = "its directory was deleted or moved while it ran"


class TrialWatch:
    """Owns what is known of each trial's process, and the folders of the trials that have not ended."""

    def __init__(self, directory: RunDirectory, display: Display, hang_timeout_s: Callable[[], float | None]) -> None:
        self.without_result: set[str] = set()
        """Names of the trials whose process trains, but has not reported yet."""
        self.failures: dict[str, RecordedError] = {}
        """Why trials fail, where that is known without their error files."""
        self._directory = directory
        self._display = display
        self._hang_timeout_s = hang_timeout_s
        self._phases = PhaseWatch()
        self._clock = RunningClock()
        self._heard_s: dict[str, float] = {}
        self._folders: dict[str, OpenFolder] = {}
        self._missed_s: dict[str, float] = {}
        self._error_times_ns: dict[str, int] = {}
        """When the error file was written that a trial had at its last start."""

    def begin(self, trial: Trial) -> None:
        """Watch a trial whose process is about to begin it."""
        if trial.name not in self._folders:
            self._folders[trial.name] = OpenFolder(self._directory.trial_directory(trial))
        self._phases.forget(self._directory.trial_directory(trial))
        self.failures.pop(trial.name, None)
        self._error_times_ns[trial.name] = self._error_time_ns(trial)
        self.lose_process(trial)

    def heard(self, trial: Trial) -> None:
        """Record that a trial has reported a result."""
        self._heard_s[trial.name] = self._clock()
        self.without_result.discard(trial.name)

    def lose_process(self, trial: Trial) -> None:
        """Record that a trial has no process that trains it."""
        self._heard_s.pop(trial.name, None)
        self.without_result.discard(trial.name)

    def end(self, trial: Trial) -> None:
        """Watch a trial no longer."""
        self.lose_process(trial)
        folder = self._folders.pop(trial.name, None)
        if folder is not None:
            folder.close()

    def close(self) -> None:
        """Close every folder; idempotent."""
        for folder in self._folders.values():
            folder.close()

    def look(self, alive: Iterable[TuneTrial]) -> None:
        """Show new phases, and kill processes that hang or have lost their directory."""
        trials = list(alive)
        if self._phases.is_due():
            self._show_phases(trials)
        for trial in trials:
            self._kill_when_folder_is_lost(trial)
            self._kill_when_hung(trial)

    def error_of(self, trial: Trial, where: str = "") -> RecordedError:
        """Return why a trial's process has failed or died; ``where`` it was is added to a death of which it is silent.

        An error file that an earlier process of the trial has left is not read.
        """
        if trial.name in self._folders and not self._folders[trial.name].is_in_place:
            return RecordedError(_FOLDER_LOST)
        if self._error_time_ns(trial) == self._error_times_ns.get(trial.name, 0):
            return RecordedError(f"the trial's process died{where} (killed, out of memory, or ended by its env)")
        path = self._directory.trial_directory(trial) / ERROR_FILE
        summary, _, _ = read_regular(path).decode(errors="replace").partition("\n")
        return RecordedError(summary, str(path.relative_to(self._directory.path)))

    def _error_time_ns(self, trial: Trial) -> int:
        try:
            return (self._directory.trial_directory(trial) / ERROR_FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def _show_phases(self, trials: Iterable[TuneTrial]) -> None:
        for ours in map(our_trial, trials):
            phase = self._phases.news(self._directory.trial_directory(ours))
            if phase is None:
                continue
            if phase == TRAINING:
                self.without_result.add(ours.name)
                self._heard_s[ours.name] = self._clock()
            self._display.on_phase(ours, phase)

    def _kill_when_hung(self, trial: TuneTrial) -> None:
        """Kill the process of a trial that has reported nothing for too long; Tune then finds that it has died.

        Only a kill helps: a process that hangs in an env's ``step`` answers nothing.
        """
        now, timeout_s = self._clock(), self._hang_timeout_s()
        if timeout_s is not None and now - self._heard_s.get(our_trial(trial).name, now) >= timeout_s:
            what = "its env hangs in reset or step, or search.hang_timeout_s is too short for an iteration"
            self._kill(trial, RecordedError(f"no result for {timeout_s:g} s: {what}"))

    def _kill_when_folder_is_lost(self, trial: TuneTrial) -> None:
        """Kill the process of a trial whose directory was deleted or moved: it cannot write.

        Not at the first look: if the whole run is being deleted, that is reported instead.
        """
        name = our_trial(trial).name
        if name not in self._folders or self._folders[name].is_in_place:
            return
        missed_s = self._missed_s.setdefault(name, time.monotonic())
        if time.monotonic() - missed_s >= LOST_AFTER_S:
            trial.max_failures = 0
            self._kill(trial, RecordedError(_FOLDER_LOST))

    def _kill(self, trial: TuneTrial, error: RecordedError) -> None:
        """Kill the process of a trial that runs, once; ``error`` is reported as its error."""
        name = our_trial(trial).name
        if name not in self.failures and kill_process(trial):
            self.failures[name] = error


def kill_process(trial: TuneTrial) -> bool:
    """Kill the process of a trial that runs; return whether there was one. Tune then finds that it has died."""
    actor = trial.temporary_state.ray_actor
    if trial.status != TuneTrial.RUNNING or actor is None:
        return False
    ray.kill(actor, no_restart=True)
    return True


def our_trial(trial: TuneTrial) -> Trial:
    """Return rlexp's trial for one of Tune's."""
    assignment: Assignment = trial.config[ASSIGNMENT]
    return assignment.trial


def deadline_s_of(trial: TuneTrial) -> float | None:
    """Return the time of day (``time.time``) at which a trial ends, None where it may take as long as it needs."""
    assignment: Assignment = trial.config[ASSIGNMENT]
    return assignment.deadline_s
