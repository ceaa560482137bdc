"""What a trial waits for that is not placed: on a cluster its resources may be used by others, or be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlexp.tuning.cluster.ray_nodes import Bundle, ClusterNodes

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
