"""What a joined cluster adds to the life of a trial: nodes that are lost or taken away, and waiting for room.

A node may be announced as about to be taken away, a spot instance; then its trials save and leave. Or it does not
answer: Ray itself needs up to a minute to find out that a machine is gone.
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
from rlexp.runs.checkpoints.trial import list_checkpoints
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import MOVE_FILE
from rlexp.search.display import Display
from rlexp.tuning.assignment import assigned, hand_over_secrets
from rlexp.tuning.node_watch import (
    SECONDS_BETWEEN_LOOKS,
    NodeLosses,
    RoomWatch,
    SilentNodes,
    missing_elsewhere,
)
from rlexp.tuning.trial_watch import kill_process, our_trial

NOTED_AFTER_S = 2.5
"""How long a node has not answered when that is shown."""
LOST_AFTER_S = 8.0
"""How long it has not answered when its trials are started elsewhere."""
_UNCOUNTED = "(not counted as a failure)"
_CONNECTIONS_FAIL_S = 60.0
"""How long after a node answers again Ray may find that its connections to a process there have failed."""


class ClusterTrials:
    """Decides which failures count, asks trials to leave nodes, and shows what trials wait for.

    ``TrialEvents`` calls it in Tune's thread. Tune restarts these trials without limit, and the limit is kept here:
    Tune counts a failure before anybody knows that its node was lost.
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
        """When the node of a trial was last seen not to answer, while its process lives."""
        self._given_up: set[str] = set()
        """Trials whose process was ended as its node does not answer."""
        self._kept: dict[str, float] = {}
        """Trials that stay on a node that does not answer, as no other has room, and when that is looked at again."""
        self._next_look_s = 0.0
        """When it is looked again which nodes are about to be taken away."""
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
        """Give up the tries to reach nodes; idempotent."""
        self._silent.close()

    def end(self, ours: Trial) -> None:
        """Record that a trial has ended."""
        self._forget_move(ours)
        self._room.forget(ours.name)
        self._over_time.discard(ours.name)

    def where(self, name: str) -> str:
        """Return where the process of a trial is, or was, as a part of a sentence."""
        node = self._losses.node_of(name)
        return f" on node {node.address}" if node is not None else ""

    def may_start_again(self, ours: Trial) -> bool:
        """Return whether a trial may start again after its process failed; a note says so if that does not count.

        It may where Ray does not answer either: then the head is lost, which the session reports.
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
        """Return whether the process of a trial ends now, which has saved a checkpoint because it was asked to move."""
        if not has_saved or ours.name not in self._asked:
            return False
        self._moving.add(ours.name)
        return True

    def look(self, alive: Iterable[TuneTrial]) -> None:
        """Give up trials on silent nodes, ask those on drained ones to move, and show what waits for room.

        Nothing of it where Ray does not answer.
        """
        trials = list(alive)
        with suppress(RayError):
            self._give_up_silent([trial for trial in trials if trial.status == TuneTrial.RUNNING])
            self._look(trials)

    def _give_up_silent(self, running: Iterable[TuneTrial]) -> None:
        """Show which trials are on a node that does not answer, and end their processes where others have room.

        Ray ends a process that it cannot reach at once, as far as Tune is concerned. Its room on that node is free only
        when the node is told of it, or is dead: without room elsewhere a new process would begin later than the old one
        continues if the node answers again.
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
        """Return whether a trial waits for its node to answer again, as the others have no room for it.

        A trial with workers beyond ``min_num_workers`` does not: what these would free elsewhere is not known.
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
        """Ask the trials whose node is about to be taken away, each process once."""
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
        """Return which of the trials that wait for room have waited to the end of their time, each of them once."""
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
        """Return the name of the checkpoint that a trial continues from."""
        found = list_checkpoints(self._directory.trial_directory(ours))
        return found[0].name if found else "its beginning"


def _bundles(trial: TuneTrial) -> Sequence[Mapping[str, float]]:
    """Return the resource bundles of a trial, the driver's first."""
    factory = trial.placement_group_factory
    assert factory is not None  # every trial of ours has one
    bundles: Sequence[Mapping[str, float]] = factory.bundles
    return [{}, *bundles] if factory.head_bundle_is_empty else bundles
