"""A trial's needs beyond a cluster's nodes: for each bundle on one node, and for all bundles together.

First-fit-decreasing finds out whether all fit together; if that fails, an exact search does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import add, le, mul, sub

from rlexp.cluster.room.machine import Cluster, ClusterNode
from rlexp.cluster.room.shortfalls import (
    SHARD_CPUS,
    bytes_per_transition,
    changed,
    count,
    cpu_parts,
    gib,
    gpu_hint,
    gpu_parts,
    replay_bytes,
    workers_key,
)
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import Amounts, Bundles, bundles_of
from rlexp.errors import Problem

_PARTS = 10_000
"""Parts in which Ray counts amounts of resources."""

_MOST_STEPS = 10_000
"""Most steps of the exact search, some tenths of a second. Dozens of nearly full nodes may need more."""

_Counts = tuple[int, ...]
"""Number of bundles of each kind; or number of parts of each resource."""


def packs(bundles: Sequence[Amounts], nodes: Sequence[Amounts]) -> bool | None:
    """Return whether all ``bundles`` fit on ``nodes``, each as a whole on one of them.

    None: the search was given up, and first-fit-decreasing found no way.
    """
    names = sorted({name for bundle in bundles for name, amount in bundle.items() if amount > 0})
    kinds = Counter(parts for bundle in bundles if any(parts := _parts(bundle, names)))
    rooms = sorted((_parts(node, names) for node in nodes), reverse=True)
    if not kinds:
        return True
    if not _may_fit(kinds, rooms):
        return False
    if _first_fit_decreasing(kinds, rooms):
        return True
    return _Search(kinds, rooms).result()


def together(bundles: Sequence[Amounts]) -> dict[str, float]:
    """Return one bundle with the needs of all ``bundles``."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def _parts(amounts: Amounts, names: Sequence[str]) -> _Counts:
    return tuple(round(amounts.get(name, 0.0) * _PARTS) for name in names)


def _may_fit(kinds: Mapping[_Counts, int], rooms: Sequence[_Counts]) -> bool:
    """Return False if a bundle is larger than every node, or all together are larger than all nodes."""
    if not all(any(_number_in(room, kind) for room in rooms) for kind in kinds):
        return False
    needed = [sum(kind[i] * number for kind, number in kinds.items()) for i in range(len(next(iter(kinds))))]
    return all(amount <= sum(room[i] for room in rooms) for i, amount in enumerate(needed))


def _number_in(room: _Counts, kind: _Counts) -> int:
    """Return how many bundles of a kind fit into ``room``."""
    return min(has // needs for has, needs in zip(room, kind, strict=True) if needs)


def _without(room: _Counts, kind: _Counts, number: int) -> _Counts:
    return tuple(has - needs * number for has, needs in zip(room, kind, strict=True))


def _first_fit_decreasing(kinds: Mapping[_Counts, int], rooms: Sequence[_Counts]) -> bool:
    """Return whether all fit if each, the largest first, goes to the first node with room for it."""
    totals = [max(sum(column), 1) for column in zip(*rooms, strict=True)]
    left = list(rooms)
    for kind in sorted(kinds, key=lambda kind: -max(part / all_ for part, all_ in zip(kind, totals, strict=True))):
        missing = kinds[kind]
        for i, room in enumerate(left):
            number = min(missing, _number_in(room, kind))
            left[i] = _without(room, kind, number)
            missing -= number
        if missing:
            return False
    return True


class _Search:
    """Fills one node after another, with every choice of bundles, until all have a node.

    A node is only filled so that no further bundle fits. If there is a way at all, bundles of later nodes can be moved
    to it until it is full, so there is also a way with a full one.
    """

    def __init__(self, kinds: Mapping[_Counts, int], rooms: Sequence[_Counts]) -> None:
        self._kinds = tuple(kinds)
        self._numbers = tuple(kinds.values())
        self._rooms = tuple(rooms)
        behind: list[_Counts] = [(0,) * len(rooms[0])]
        for room in reversed(rooms):
            behind.append(tuple(map(add, behind[-1], room)))
        self._room_from = behind[::-1]
        """The resources of each node and all nodes after it together."""
        self._steps = 0

    def result(self) -> bool | None:
        """Return whether there is a way; None if it was not found within the steps."""
        failed: set[tuple[int, _Counts]] = set()
        path = [(self._numbers, self._fillings(0, self._numbers))]
        while path:
            left, fillings = path[-1]
            filling = next(fillings, None)
            if self._steps > _MOST_STEPS:
                return None
            if filling is None:
                path.pop()
                failed.add((len(path), left))
                continue
            left = tuple(map(sub, left, filling))
            if not any(left):
                return True
            if (len(path), left) not in failed and self._may_fit(len(path), left):
                path.append((left, self._fillings(len(path), left)))
        return False

    def _may_fit(self, node: int, left: _Counts) -> bool:
        """Return False if the nodes from this one on are smaller together than the bundles."""
        needed = (sum(map(mul, column, left)) for column in zip(*self._kinds, strict=True))
        return node < len(self._rooms) and all(map(le, needed, self._room_from[node]))

    def _fillings(self, node: int, left: _Counts) -> Iterator[_Counts]:
        """Yield each choice of bundles that fills a node, with as many of the first kind as possible first."""
        for chosen, room in self._choices(self._rooms[node], left):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                return
            unused = map(sub, left, chosen)
            if not any(more and _number_in(room, kind) for kind, more in zip(self._kinds, unused, strict=True)):
                yield chosen

    def _choices(self, room: _Counts, left: _Counts) -> Iterator[tuple[_Counts, _Counts]]:
        """Yield numbers of bundles of each kind that fit into ``room``, and the room that remains."""
        if not left:
            yield (), room
            return
        index = len(self._kinds) - len(left)
        kind, most = self._kinds[index], min(left[0], _number_in(room, self._kinds[index]))
        # For the last kind, a full node has as many as fit.
        for number in range(most, -1 if len(left) > 1 else most - 1, -1):
            for others, rest in self._choices(_without(room, kind, number), left[1:]):
                yield (number, *others), rest


_REPLAY = "bytes of replay"
"""Memory as a resource of the driver's bundle and of nodes, which Ray does not know."""

_ROUNDING = 1e-4
"""Parts in which Ray counts CPUs and GPUs."""

_OR_WAIT = "or --wait 10m until there are more nodes"


def cluster_shortfalls(experiment: Experiment, cluster: Cluster) -> Iterator[Problem]:
    """Yield one trial's needs beyond what the nodes have, each with overrides that make it fit."""
    bundles = bundles_of(experiment.config)
    if bundles.strategy == "STRICT_PACK":
        yield from _beyond_one_node(experiment, bundles, cluster)
        return
    found = [*_too_large_parts(experiment, bundles, cluster), *_too_much_in_all(experiment, bundles, cluster)]
    yield from found
    if not found and packs(whole_parts(experiment, with_replay=True), node_amounts(cluster)) is False:
        nodes = ", ".join(f"{node.machine.cpus}" for node in cluster.nodes)
        message = (
            f"{experiment.name} needs {_needs(bundles)}, which the nodes have no room for together (CPUs: {nodes})"
        )
        yield Problem("", message, _fewer_workers(experiment, cluster))


def node_amounts(cluster: Cluster) -> list[Amounts]:
    """Return the resources of each node, with its memory."""
    return [
        {
            **node.custom,
            "CPU": float(node.machine.cpus),
            "GPU": float(node.machine.gpus),
            _REPLAY: float(node.machine.memory_total),
        }
        for node in cluster.nodes
    ]


def most_workers(experiment: Experiment, cluster: Cluster) -> int | None:
    """Return the number of workers for which the nodes have room, up to the experiment's; None if for no number."""
    if not _fits(experiment, cluster, 0):
        return None
    return largest_that_fits(experiment.config.num_reserved_workers, partial(_fits, experiment, cluster))


def largest_that_fits(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to ``most`` that ``fits``, as do all smaller ones; 0 if none does."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def _fits(experiment: Experiment, cluster: Cluster, num_workers: int) -> bool:
    fewer = changed(experiment, {workers_key(experiment.config): num_workers})
    return packs(whole_parts(fewer, with_replay=True), node_amounts(cluster)) is True


def whole_parts(experiment: Experiment, *, with_replay: bool = False) -> list[Amounts]:
    """Return the parts of a trial that each must be on one node: its bundles, or one part if none may be elsewhere.

    ``with_replay``: the driver's part also needs the memory of replay, which is all on one node.
    """
    bundles = bundles_of(experiment.config)
    driver, *others = bundles.listed
    listed = [{**driver, _REPLAY: float(replay_bytes(experiment))} if with_replay else driver, *others]
    return [together(listed)] if bundles.strategy == "STRICT_PACK" else listed


def _too_large_parts(experiment: Experiment, bundles: Bundles, cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for each bundle that is too large for every node."""
    config = experiment.config
    shards = " and shards" if config.cpus_of_shards else ""
    learner, worker = "each learner", "each worker"
    yield from _too_large(experiment, bundles.driver, {"CPU": f"its driver{shards}", "GPU": "its learner"}, cluster)
    if bundles.num_learners:
        yield from _too_large(experiment, bundles.learner, dict.fromkeys(bundles.learner, learner), cluster)
    if bundles.num_workers:
        yield from _too_large(experiment, bundles.worker, dict.fromkeys(bundles.worker, worker), cluster)
    yield from _too_much_replay(experiment, cluster)


def _too_large(experiment: Experiment, bundle: Amounts, users: dict[str, str], cluster: Cluster) -> Iterator[Problem]:
    """Yield a bundle's needs that no node has; ``users`` says for each resource who needs it."""
    alone = False
    for name, amount in bundle.items():
        largest = max(cluster.nodes, key=partial(_amount_of, name=name))
        has = _amount_of(largest, name)
        if amount > has:
            alone = True
            seen = f"the largest node {largest.name} has {has:g}" if has else "no node has one"
            message = f"{experiment.name} needs a node with {_amount(name, amount)} for {users[name]}; {seen}"
            yield Problem("", message, _smaller_part(experiment, users[name], name, has))
    if not alone and packs([bundle], node_amounts(cluster)) is False:
        message = f"{experiment.name} needs a node with {amounts_in_words(bundle)} for {next(iter(users.values()))}; "
        message += "nodes have them, but not the same node"
        yield Problem("", message, "lower one of them, or --fit")


def _too_much_replay(experiment: Experiment, cluster: Cluster) -> Iterator[Problem]:
    replay, each = experiment.config.replay, bytes_per_transition(experiment)
    largest = max(cluster.nodes, key=lambda node: node.machine.memory_total)
    if replay is None or each is None or each * replay.capacity <= largest.machine.memory_total:
        return
    message = f"{experiment.name} may need a node with {gib(each * replay.capacity)} for replay; "
    message += f"the largest node {largest.name} has {gib(largest.machine.memory_total)}"
    capacity = largest.machine.memory_total // each
    yield Problem("", message, f"-o config.{replay.capacity_key}={capacity}, or --fit")


def _too_much_in_all(experiment: Experiment, bundles: Bundles, cluster: Cluster) -> Iterator[Problem]:
    """Yield the resources of which all nodes together have too little."""
    config = experiment.config
    parts = {"CPU": cpu_parts(config), "GPU": gpu_parts(config)}
    for name in {**bundles.driver, **bundles.learner, **bundles.worker}:
        amounts = [_amount_of(node, name) for node in cluster.nodes]
        part_needs = max(bundle.get(name, 0.0) for bundle in bundles.listed)
        needed, has = bundles.total(name), sum(amounts)
        if part_needs <= max(amounts) and needed > has + _ROUNDING:  # otherwise it is reported for the part alone
            part = parts.get(name, f"{bundles.num_workers} workers x {bundles.worker.get(name, 0.0):g}")
            message = f"{experiment.name} needs {_amount(name, needed)} ({part}), the cluster has {has:g}"
            yield Problem("", f"{message} on {count(len(amounts), 'node')}", _fewer_workers(experiment, cluster))


def _beyond_one_node(experiment: Experiment, bundles: Bundles, cluster: Cluster) -> Iterator[Problem]:
    """Yield a trial's needs beyond the largest node, if all of it must be on one node."""
    found = [*_too_much_replay(experiment, cluster)]
    if found or packs(whole_parts(experiment, with_replay=True), node_amounts(cluster)):
        yield from found
        return
    largest = max(cluster.nodes, key=lambda node: node.machine.cpus)
    needs = amounts_in_words(together(bundles.listed))
    message = f"{experiment.name} needs one node with {needs}, because replay_storage is shared_memory; "
    message += f"the largest node {largest.name} has {count(largest.machine.cpus, 'CPU')}"
    yield Problem("", message, f"-o config.replay_storage=actors, or {_fewer_workers(experiment, cluster)}")


def _smaller_part(experiment: Experiment, user: str, name: str, has: float) -> str:
    """Return overrides with which a part needs at most ``has`` of a resource."""
    config = experiment.config
    if name == "GPU":
        return f"{gpu_hint(config)}, or --fit" if not has else "--fit"
    if name != "CPU":
        return "remove custom_resources_per_worker, or add nodes that have such resources"
    if user == "each worker":
        return f"-o config.num_cpus_per_worker={has:g}, or --fit"
    if user == "each learner":
        key = "num_cpus_per_learner" if config.LEARNERS_KEY == "num_learners" else "num_cpus_for_driver"
        return f"-o config.{key}={has:g}, or --fit"
    if config.cpus_of_shards and config.num_cpus_for_driver <= has:
        return f"-o config.{SHARD_CPUS}=0, or --fit"
    return f"-o config.num_cpus_for_driver={has:g}, or --fit"


def _fewer_workers(experiment: Experiment, cluster: Cluster) -> str:
    """Return an override with as many workers as there is room for."""
    most = most_workers(experiment, cluster)
    if most is None or most == experiment.config.num_reserved_workers:
        return f"--fit, {_OR_WAIT}"
    return f"-o config.{workers_key(experiment.config)}={most}, --fit, {_OR_WAIT}"


def _needs(bundles: Bundles) -> str:
    """Return the bundles in words: ``4 CPUs for its driver, 3 x 2 CPUs for workers``."""
    texts = [f"{amounts_in_words(bundles.driver)} for its driver"] if bundles.driver else []
    if bundles.num_learners:
        texts.append(f"{bundles.num_learners} x {amounts_in_words(bundles.learner)} for learners")
    if bundles.num_workers:
        texts.append(f"{bundles.num_workers} x {amounts_in_words(bundles.worker)} for workers")
    return ", ".join(texts)


def amounts_in_words(bundle: Amounts) -> str:
    """Return a bundle in words: ``4 CPUs and 1 GPU``."""
    return " and ".join(_amount(name, amount) for name, amount in bundle.items()) or "no resources"


def _amount(name: str, amount: float) -> str:
    return count(amount, name) if name in ("CPU", "GPU") else f"{amount:g} {name}"


def _amount_of(node: ClusterNode, name: str) -> float:
    own = {"CPU": float(node.machine.cpus), "GPU": float(node.machine.gpus)}
    return own.get(name, node.custom.get(name, 0.0))
