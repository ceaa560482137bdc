"""A cluster without Ray: nodes that a test ends, and the objects of Tune that TrialEvents reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayError
from ray.tune.experiment import Trial as TuneTrial

from rlexp.cluster.joined import Reachability
from rlexp.cluster.pool.nodes import Bundle, RayNode, RayTables
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.tuning.assignment import ASSIGNMENT, Assignment


@dataclass
class FakeNodes(RayTables):
    """Nodes ``a`` and ``b``; an actor is the id of the node that it is on, or ``places`` says where it is."""

    rows: list[RayNode] = field(
        default_factory=lambda: [RayNode("a", "10.0.0.1", 1, True), RayNode("b", "10.0.0.2", 1, True)]
    )
    places: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    free: dict[str, Bundle] = field(default_factory=dict)
    groups: list[list[Bundle]] = field(default_factory=list)
    """Those that wait for room."""
    held: list[list[tuple[str, Bundle]]] = field(default_factory=list)
    head_is_lost: bool = False
    num_counted: int = 0

    def num_alive(self) -> int:
        self.num_counted += 1
        return sum(node.is_alive for node in self.rows)

    def nodes(self) -> Sequence[RayNode]:
        if self.head_is_lost:
            raise RayError("no head")
        return self.rows

    def nodes_of(self, actors: Sequence[str]) -> Sequence[str | None]:
        ids = {node.id for node in self.nodes()}
        return [node if node in ids else None for node in (self.places.get(actor, actor) for actor in actors)]

    def answers(self, node: RayNode) -> bool:
        return node.id not in self.silent

    def draining(self) -> frozenset[str]:
        self.nodes()
        return frozenset(self.drained)

    def available(self) -> Mapping[str, Bundle]:
        return self.free

    def placed(self) -> Sequence[Sequence[tuple[str, Bundle]]]:
        return self.held

    def unplaced(self) -> Sequence[Sequence[Bundle]]:
        return self.groups

    def declare_dead(self, node_id: str) -> None:
        self.rows = [replace(node, is_alive=node.is_alive and node.id != node_id) for node in self.rows]


@dataclass
class FakeServer(Reachability):
    """A node's manager, which has not answered for as long as the test says."""

    silences_s: dict[str, float]
    node: RayNode
    is_closed: bool = False

    def silent_s(self) -> float:
        assert not self.is_closed
        return self.silences_s.get(self.node.id, 0.0)

    def close(self) -> None:
        self.is_closed = True


def make_trial(**keys: Any) -> Trial:
    data = {"name": "small", "run": "APEX", "env": "CartPole-v1", "config": {}, **keys}
    return Trial(0, "00000-small", AGENTS["APEX"].model_validate(data), {}, 0)


def tune_trial(trial: Trial, node: str, status: str = TuneTrial.RUNNING, deadline_s: float | None = None) -> Any:
    """Return what TrialEvents reads of Tune's trial, whose process is on ``node``."""
    assignment = Assignment(trial, Path("/nowhere"), UserModules(), None, deadline_s)
    return SimpleNamespace(
        config={ASSIGNMENT: assignment},
        status=status,
        max_failures=0,
        temporary_state=SimpleNamespace(ray_actor=node),
        placement_group_factory=SimpleNamespace(
            bundles=[{"CPU": 4.0}, {"CPU": 1.0}, {"CPU": 1.0}], head_bundle_is_empty=False
        ),
    )
