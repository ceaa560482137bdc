"""Watches the processes of trials between their results: phases, hung processes, lost directories, errors.

The second part watches the nodes of a joined cluster for them: lost and silent nodes, and room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial

from rlexp.cluster.joined import Reachability
from rlexp.cluster.pool.nodes import Bundle, RayNode, RayTables
from rlexp.cluster.room.packing import amounts_in_words, together
from rlexp.config.keys.trial import Trial
from rlexp.files import read_regular
from rlexp.metrics import RunningClock
from rlexp.processes.locks import OpenFolder
from rlexp.runs.record import RecordedError
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import ERROR_FILE, TRAINING, PhaseWatch, is_progress
from rlexp.search.standings import Display
from rlexp.tuning.assignment import assigned

LOST_AFTER_S = 1.0
"""Seconds for which a trial's directory must be missing before the trial is ended."""
_FOLDER_LOST = "its directory was deleted or moved while it ran"


class TrialWatch:
    """Owns the known facts of each trial's process, and the folders of the trials that have not ended."""

    def __init__(self, directory: RunDirectory, display: Display, hang_timeout_s: Callable[[], float | None]) -> None:
        self.without_result: set[str] = set()
        """Names of the trials whose process trains, but has not reported yet."""
        self.failures: dict[str, RecordedError] = {}
        """Why trials fail, if that is known without their error files."""
        self._directory = directory
        self._display = display
        self._hang_timeout_s = hang_timeout_s
        self._phases = PhaseWatch()
        self._clock = RunningClock()
        self._begun_s: dict[str, float] = {}
        self._heard_s: dict[str, float] = {}
        self._folders: dict[str, OpenFolder] = {}
        self._missed_s: dict[str, float] = {}
        self._error_times_ns: dict[str, int] = {}
        """Time of the error file that a trial had at its last start."""

    def begin(self, trial: Trial) -> None:
        """Watch a trial whose process is about to begin it."""
        if trial.name not in self._folders:
            self._folders[trial.name] = OpenFolder(self._directory.trial_directory(trial))
        self._phases.forget(self._directory.trial_directory(trial))
        self.failures.pop(trial.name, None)
        self._error_times_ns[trial.name] = self._error_time_ns(trial)
        self.lose_process(trial)
        self._begun_s[trial.name] = self._clock()

    def heard(self, trial: Trial) -> None:
        """Record that a trial has reported a result."""
        self._heard_s[trial.name] = self._clock()
        self.without_result.discard(trial.name)

    def lose_process(self, trial: Trial) -> None:
        """Record that a trial has no process that trains it."""
        self._begun_s.pop(trial.name, None)
        self._heard_s.pop(trial.name, None)
        self.without_result.discard(trial.name)

    def end(self, trial: Trial) -> None:
        """Stop watching a trial."""
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
        """Return why a trial's process has failed or died; a death without a reason is completed by ``where`` it was.

        An error file of an earlier process of the trial is not read.
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
            if phase == TRAINING or (is_progress(phase) and ours.name not in self._heard_s):
                self.without_result.add(ours.name)
                self._heard_s[ours.name] = self._clock()
            self._display.on_phase(ours, phase)

    def _kill_when_hung(self, trial: TuneTrial) -> None:
        """Kill the process of a trial that has reported nothing for too long; Tune then finds that it has died.

        Only a kill helps, as a process that hangs in an env's ``step`` does not answer. The start counts as well.
        """
        now, timeout_s, name = self._clock(), self._hang_timeout_s(), our_trial(trial).name
        if timeout_s is not None and now - self._heard_s.get(name, self._begun_s.get(name, now)) >= timeout_s:
            what = "its env hangs in __init__, reset or step, or search.hang_timeout_s is too short for an iteration"
            self._kill(trial, RecordedError(f"no result for {timeout_s:g} s: {what}"))

    def _kill_when_folder_is_lost(self, trial: TuneTrial) -> None:
        """Kill the process of a trial whose directory was deleted or moved, as it cannot write.

        Not at the first check: if the whole run is being deleted, that is reported instead.
        """
        name = our_trial(trial).name
        if name not in self._folders or self._folders[name].is_in_place:
            return
        missed_s = self._missed_s.setdefault(name, time.monotonic())
        if time.monotonic() - missed_s >= LOST_AFTER_S:
            trial.max_failures = 0
            self._kill(trial, RecordedError(_FOLDER_LOST))

    def _kill(self, trial: TuneTrial, error: RecordedError) -> None:
        """Kill the process of a running trial, once; ``error`` is reported as its error."""
        name = our_trial(trial).name
        if name not in self.failures and kill_process(trial):
            self.failures[name] = error


def kill_process(trial: TuneTrial) -> bool:
    """Kill the process of a running trial; return whether there was one. Tune then finds that it has died."""
    actor = trial.temporary_state.ray_actor
    if trial.status != TuneTrial.RUNNING or actor is None:
        return False
    ray.kill(actor, no_restart=True)
    return True


def our_trial(trial: TuneTrial) -> Trial:
    """Return rlexp's trial for one of Tune's."""
    return assigned(trial).trial


SECONDS_BETWEEN_LOOKS = 5.0
INTERVAL_S = 1.0
"""Seconds between two tries to reach a silent node."""
_LOOKS = 3
_BETWEEN_LOOKS_S = 0.4
"""Seconds between two checks, as a killed node does not lose all of its processes at once."""
PATIENCE_S = 3.0
"""Seconds that a trial may wait before that is shown, as Ray needs a moment even if there is room."""
_ROUNDING = 1e-4
"""Parts in which Ray counts resources."""


class NodeLosses:
    """Owns the place of each trial's process, and the counted failures of the trials."""

    def __init__(self, nodes: RayTables, wait: Callable[[float], None] = time.sleep) -> None:
        self._nodes = nodes
        self._wait = wait
        self._node_of: dict[str, RayNode] = {}
        self._may_be_on: dict[str, Sequence[RayNode]] = {}
        """The possible places of a process that starts after a loss, until it begins its trial."""
        self._failed_at: dict[str, list[RayNode | None]] = {}
        """The node of each failure that was counted when it came."""

    def begin(self, name: str, actor: Any) -> None:
        """Store the place of a trial's process, an actor that has started."""
        self._node_of.pop(name, None)
        self._may_be_on.pop(name, None)
        with suppress(RayError):  # the head is lost, which the session reports
            node = self._nodes.of_actor(actor)
            if node is not None:
                self._node_of[name] = node

    def node_of(self, name: str) -> RayNode | None:
        """Return the node of the trial's present or last process."""
        return self._node_of.get(name)

    def lost_node(self, name: str) -> RayNode | None:
        """Return the node of a trial whose process has just died; None if the node lives.

        Ray declares a node dead after up to half a minute, so a node that accepts no connection also counts as lost. A
        drained node ends its processes by itself. This takes about a second if the node lives.

        If the next process dies before it begins the trial, any node that was lost meanwhile is returned.
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


def _server_of(node: RayNode) -> Reachability:
    return Reachability(node.address, node.port, interval_s=INTERVAL_S)


class SilentNodes:
    """Owns the tries to reach the nodes of running trials, until ``close``; nothing here waits."""

    def __init__(self, server_of: Callable[[RayNode], Reachability] = _server_of) -> None:
        self._server_of = server_of
        self._servers: dict[str, Reachability] = {}

    def look(self, running: Mapping[str, RayNode]) -> dict[str, float]:
        """Return the seconds for which the node of each running trial has not answered; often 0 for all."""
        nodes = {node.id: node for node in running.values()}
        for node_id in self._servers.keys() - nodes.keys():
            self._servers.pop(node_id).close()
        for node_id in nodes.keys() - self._servers.keys():
            with suppress(OSError):  # its name is not known at this moment
                self._servers[node_id] = self._server_of(nodes[node_id])
        silent_s = {node_id: server.silent_s() for node_id, server in self._servers.items()}
        return {name: silent_s.get(node.id, 0.0) for name, node in running.items()}

    def close(self) -> None:
        """Stop every try; idempotent."""
        while self._servers:
            self._servers.popitem()[1].close()


class RoomWatch:
    """Owns the start of each trial's wait, and what was shown of it."""

    def __init__(self, nodes: RayTables, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._clock = clock
        self._since_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._next_look_s = 0.0

    def news(self, waiting: Mapping[str, Sequence[Bundle]]) -> dict[str, str]:
        """Return what trials wait for, if it changed; ``waiting`` has the bundles of all without a process.

        A trial with placed bundles waits for its process to start, which is not shown here.
        """
        now_s = self._clock()
        for name in self._since_s.keys() - waiting.keys():
            self.forget(name)
        for name in waiting:
            self._since_s.setdefault(name, now_s)
        late = [name for name in waiting if now_s - self._since_s[name] >= PATIENCE_S]
        if not late or now_s < self._next_look_s:
            return {}
        self._next_look_s = now_s + SECONDS_BETWEEN_LOOKS
        available = list(self._nodes.available().values())
        unplaced = [[dict(bundle) for bundle in group] for group in self._nodes.unplaced()]
        late = [name for name in late if [dict(bundle) for bundle in waiting[name] if bundle] in unplaced]
        missing = {name: missing_room(waiting[name], available) or "Ray has not placed it yet" for name in late}
        texts = {name: f"waiting for room: {text}" for name, text in missing.items()}
        found = {name: text for name, text in texts.items() if self._said.get(name) != text}
        self._said |= found
        return found

    def forget(self, name: str) -> None:
        """Forget a trial that no longer waits."""
        self._since_s.pop(name, None)
        self._said.pop(name, None)


def missing_elsewhere(bundles: Sequence[Bundle], is_on_one: bool, node_id: str, nodes: RayTables) -> str | None:
    """Return what a trial on a node would lack on other nodes if its process ended; None if nothing.

    Its own bundles there count as free, as after the end of its process. ``is_on_one``: it needs all on one node.
    """
    free = {other: dict(resources) for other, resources in nodes.available().items() if other != node_id}
    wanted = [dict(bundle) for bundle in bundles if bundle]
    for group in nodes.placed():
        if [dict(bundle) for _, bundle in group] == wanted and node_id in {where for where, _ in group}:
            for where, bundle in group:
                for name, amount in bundle.items() if where in free else ():
                    free[where][name] = free[where].get(name, 0.0) + amount
            break
    return missing_room([together(bundles)] if is_on_one else bundles, list(free.values()))


def missing_room(bundles: Sequence[Bundle], available: Sequence[Bundle]) -> str | None:
    """Return what bundles lack, the first of them the driver's, on nodes with so much available; None if nothing.

    Larger ones are placed first, each on the first node with room, as Ray does.
    """
    free = [dict(node) for node in available]
    driver, others = bundles[0], sorted(bundles[1:], key=lambda bundle: sorted(bundle.values()), reverse=True)
    if not _place(driver, free):
        return f"a node with {amounts_in_words(driver)}{' for the driver' if others else ''}"
    unplaced = [bundle for bundle in others if not _place(bundle, free)]
    if not unplaced:
        return None
    what = "process" if len(others) == 1 else "processes"
    return f"{len(unplaced)} of its {len(others)} other {what} ({amounts_in_words(unplaced[0])} each)"


def _place(bundle: Bundle, free: list[dict[str, float]]) -> bool:
    for node in free:
        if all(node.get(name, 0.0) + _ROUNDING >= amount for name, amount in bundle.items()):
            for name, amount in bundle.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False
