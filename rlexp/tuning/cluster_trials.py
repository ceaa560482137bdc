"""Trials in a joined cluster: nodes that are lost or taken away, and waiting for room.

A node, such as a spot instance, may be announced as about to be taken away; then its trials save and leave. Or a node
does not answer, as Ray needs up to a minute to find out that a machine is gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial

from rlexp.cluster.pool.nodes import RayNode, RayTables
from rlexp.config.keys.trial import Trial, bundles_of
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import MOVE_FILE
from rlexp.search.standings import Display
from rlexp.tuning.assignment import assigned, hand_over_secrets
from rlexp.tuning.trial_watch import (
    SECONDS_BETWEEN_LOOKS,
    NodeLosses,
    RoomWatch,
    SilentNodes,
    kill_process,
    missing_elsewhere,
    our_trial,
)

NOTED_AFTER_S = 2.5
"""Seconds without an answer of a node after which that is shown."""
LOST_AFTER_S = 8.0
"""Seconds without an answer after which its trials are started elsewhere."""
_UNCOUNTED = "(not counted as a failure)"
_CONNECTIONS_FAIL_S = 60.0
"""Seconds after a node answers again in which Ray may still report failed connections to a process there."""


class ClusterTrials:
    """Decides which failures are counted, asks trials to leave nodes, and shows what trials wait for.

    ``TrialEvents`` calls it in Tune's thread. Tune restarts these trials without limit. The limit is here, as Tune
    counts a failure before a lost node is known.
    """

    def __init__(
        self,
        nodes: RayTables,
        directory: RunDirectory,
        display: Display,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        silent: SilentNodes | None = None,
    ) -> None:
        self._directory = directory
        self._display = display
        self._nodes = nodes
        self._clock = clock
        self._losses = NodeLosses(nodes, wait)
        self._room = RoomWatch(nodes, clock)
        self._silent = silent or SilentNodes()
        self._silent_noted: set[str] = set()
        self._silent_until_s: dict[str, float] = {}
        """When a trial's node was last seen not to answer although its process lives."""
        self._given_up: set[str] = set()
        """Trials whose process was ended because its node does not answer."""
        self._kept: dict[str, float] = {}
        """Trials that stay on a silent node, as no other has room, and the time of the next check."""
        self._next_look_s = 0.0
        """Time of the next check for nodes that are about to be taken away."""
        self._asked: set[str] = set()
        """Trials that were asked to move since their process began."""
        self._moving: set[str] = set()
        """Trials whose process was ended after its checkpoint, to start elsewhere."""
        self._ran: set[str] = set()
        self._over_time: set[str] = set()

    def begin(self, trial: TuneTrial) -> None:
        """Record that a process is about to begin a trial."""
        ours = our_trial(trial)
        trial.max_failures = -1
        self._losses.begin(ours.name, trial.temporary_state.ray_actor)
        hand_over_secrets(trial, is_successor=ours.name in self._ran)
        self._ran.add(ours.name)
        self._forget_move(ours)
        self._silent_noted.discard(ours.name)
        self._given_up.discard(ours.name)
        self._kept.pop(ours.name, None)
        self._silent_until_s.pop(ours.name, None)
        self._room.forget(ours.name)

    def close(self) -> None:
        """Stop the tries to reach nodes; idempotent."""
        self._silent.close()

    def end(self, ours: Trial) -> None:
        """Record that a trial has ended."""
        self._forget_move(ours)
        self._room.forget(ours.name)
        self._over_time.discard(ours.name)

    def where(self, name: str) -> str:
        """Return where the process of a trial is or was, as a part of a sentence."""
        node = self._losses.node_of(name)
        return f" on node {node.address}" if node is not None else ""

    def may_start_again(self, ours: Trial) -> bool:
        """Return whether a trial may start again after its process failed; a note says so if that is not counted.

        It also may if Ray does not answer: then the head is lost, which the session reports.
        """
        again = f"it starts again from {self._newest(ours)} {_UNCOUNTED}"
        allowed, has_left = ours.experiment.max_failures, ours.name in self._moving
        self._moving.discard(ours.name)
        with suppress(RayError):
            lost = self._losses.lost_node(ours.name)
            was_silent = self._clock() - self._silent_until_s.pop(ours.name, -math.inf) < _CONNECTIONS_FAIL_S
            if lost is None and not has_left and not was_silent:
                return self._losses.count(ours.name) <= allowed or allowed < 0
            if has_left:
                why = "it has left its node"
            elif lost is not None:
                why = f"its node {lost.address} is lost"
            else:
                why = f"its process{self.where(ours.name)} was cut off"
            self._display.on_note(ours, f"{why}; {again}")
        return True

    def leaves(self, ours: Trial, has_saved: bool) -> bool:
        """Return whether a trial's process ends now, because it was asked to move and has saved a checkpoint."""
        if not has_saved or ours.name not in self._asked:
            return False
        self._moving.add(ours.name)
        return True

    def look(self, alive: Iterable[TuneTrial]) -> None:
        """Give up trials on silent nodes, ask trials on drained ones to move, and show what waits for room.

        Does nothing if Ray does not answer.
        """
        trials = list(alive)
        with suppress(RayError):
            self._give_up_silent([trial for trial in trials if trial.status == TuneTrial.RUNNING])
            self._look(trials)

    def _give_up_silent(self, running: Iterable[TuneTrial]) -> None:
        """Show which trials are on a node that does not answer, and end their processes if other nodes have room.

        For Tune, Ray ends an unreachable process at once. Its room on that node becomes free only when the node hears
        of it, or is dead. Without room elsewhere, a new process would start later than the old one could continue.
        """
        trials = {our_trial(trial).name: trial for trial in running}
        nodes = {name: node for name in trials if (node := self._losses.node_of(name)) is not None}
        for name, seconds in self._silent.look(nodes).items():
            if seconds < NOTED_AFTER_S:
                self._silent_noted.discard(name)
                if self._kept.pop(name, None) is not None:
                    self._display.on_note(our_trial(trials[name]), f"its node {nodes[name].address} answers again")
                continue
            self._silent_until_s[name] = self._clock()
            if name not in self._silent_noted:
                self._silent_noted.add(name)
                self._display.on_note(our_trial(trials[name]), f"its node {nodes[name].address} does not answer")
            if seconds >= LOST_AFTER_S and name not in self._given_up and not self._keeps(trials[name], nodes[name]):
                self._given_up.add(name)
                kill_process(trials[name])

    def _keeps(self, trial: TuneTrial, node: RayNode) -> bool:
        """Return whether a trial waits for its node to answer again, as other nodes have no room for it.

        A trial with workers beyond ``min_num_workers`` does not: the room that they would free elsewhere is unknown.
        """
        ours, now_s = our_trial(trial), self._clock()
        if now_s < self._kept.get(ours.name, 0.0):
            return True
        needed = bundles_of(ours.experiment.config)
        is_elastic, is_on_one = needed.num_elastic_workers > 0, needed.strategy == "STRICT_PACK"
        missing = None if is_elastic else missing_elsewhere(_bundles(trial), is_on_one, node.id, self._nodes)
        if missing is None:
            self._kept.pop(ours.name, None)
            return False
        if ours.name not in self._kept:
            self._display.on_note(ours, f"waits for its node {node.address}, the others have no room: {missing}")
        self._kept[ours.name] = now_s + SECONDS_BETWEEN_LOOKS
        return True

    def _look(self, trials: Sequence[TuneTrial]) -> None:
        if self._clock() >= self._next_look_s:
            self._next_look_s = self._clock() + SECONDS_BETWEEN_LOOKS
            self._ask_to_move([our_trial(trial) for trial in trials if trial.status == TuneTrial.RUNNING])
        self._show_waiting({our_trial(trial).name: trial for trial in trials if trial.status == TuneTrial.PENDING})

    def _ask_to_move(self, running: Iterable[Trial]) -> None:
        """Ask the trials to move whose node is about to be taken away, each process once."""
        draining = self._nodes.draining()
        for ours in running:
            node = self._losses.node_of(ours.name)
            if node is None or node.id not in draining or ours.name in self._asked:
                continue
            self._asked.add(ours.name)
            with suppress(OSError):  # the directory is missing, which TrialWatch reports
                (self._directory.trial_directory(ours) / MOVE_FILE).touch()
            what = "is about to be taken away; the trial saves a checkpoint and starts again elsewhere"
            self._display.on_note(ours, f"its node {node.address} {what}")

    def over_time(self, waiting: Sequence[TuneTrial], now_s: float) -> list[TuneTrial]:
        """Return the waiting trials whose time is over, each of them once."""
        found = []
        for trial in waiting:
            name, deadline_s = our_trial(trial).name, assigned(trial).deadline_s
            if deadline_s is not None and now_s >= deadline_s and name not in self._over_time:
                self._over_time.add(name)
                found.append(trial)
        return found

    def _show_waiting(self, waiting: Mapping[str, TuneTrial]) -> None:
        bundles = {name: _bundles(trial) for name, trial in waiting.items()}
        for name, text in self._room.news(bundles).items():
            ours = our_trial(waiting[name])
            self._display.on_phase(ours, text)
            if name in self._ran:
                self._display.on_note(ours, text)

    def _forget_move(self, ours: Trial) -> None:
        self._moving.discard(ours.name)
        self._asked.discard(ours.name)
        with suppress(OSError):
            (self._directory.trial_directory(ours) / MOVE_FILE).unlink(missing_ok=True)

    def _newest(self, ours: Trial) -> str:
        """Return the name of the checkpoint from which a trial continues."""
        found = list_checkpoints(self._directory.trial_directory(ours))
        return found[0].name if found else "its beginning"


def _bundles(trial: TuneTrial) -> Sequence[Mapping[str, float]]:
    """Return the resource bundles of a trial, the driver's first."""
    factory = trial.placement_group_factory
    assert factory is not None  # every trial of ours has one
    bundles: Sequence[Mapping[str, float]] = factory.bundles
    return [{}, *bundles] if factory.head_bundle_is_empty else bundles
