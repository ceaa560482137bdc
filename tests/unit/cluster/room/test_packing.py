"""The packing of bundles on nodes, against trying every way.

What replay is said to take is what it takes, and no less.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rlexp.cluster.room import packing
from rlexp.cluster.room.packing import amounts_in_words, packs, together
from rlexp.cluster.room.shortfalls import bytes_per_transition
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import Experiment
from rlexp.replay.shard import ReplayShard
from rlexp.sample_batch import (
    ACTIONS,
    DISCOUNTS,
    REWARDS,
    TD_ERRORS,
    Array,
    FrameRows,
)
from tests.lab.doubles import REPLAY
from tests.lab.rollout import stacked_rows

Amounts = dict[str, float]


def by_every_way(bundles: list[Amounts], nodes: list[Amounts]) -> bool:
    """Return the same as ``packs``, slowly: tries each node for each bundle."""
    for way in product(range(len(nodes)), repeat=len(bundles)):
        left = [dict(node) for node in nodes]
        for bundle, node in zip(bundles, way, strict=True):
            for name, amount in bundle.items():
                left[node][name] = round(left[node].get(name, 0.0) - amount, 6)
        if all(amount >= 0 for node in left for amount in node.values()):
            return True
    return False


def random_case(rng: random.Random) -> tuple[list[Amounts], list[Amounts]]:
    names = rng.sample(["CPU", "GPU", "licence"], rng.randint(1, 3))
    kinds = [{name: rng.choice([0.0, 0.5, 1.0, 2.0, 3.0]) for name in names} for _ in range(rng.randint(1, 3))]
    bundles = [rng.choice(kinds) for _ in range(rng.randint(1, 6))]
    nodes = [{name: float(rng.randint(0, 6)) for name in names} for _ in range(rng.randint(1, 3))]
    return bundles, nodes


def test_packing_equals_trying_every_way() -> None:
    rng = random.Random(7)
    found = {True: 0, False: 0}
    for _ in range(600):
        bundles, nodes = random_case(rng)
        expected = by_every_way(bundles, nodes)
        assert packs(bundles, nodes) is expected, (bundles, nodes)
        found[expected] += 1
    assert min(found.values()) > 100


def cpus(*amounts: float) -> list[Amounts]:
    return [{"CPU": float(amount)} for amount in amounts]


def test_exact_search_finds_what_first_fit_decreasing_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles, nodes = cpus(6, 5, 5, 4, 4, 3, 3), cpus(15, 15)  # 6 + 5 + 4 and 5 + 4 + 3 + 3
    assert packs(bundles, nodes) is True
    bundles, nodes = cpus(4, 4, 3, 3, 3, 3), cpus(10, 10)
    searched: list[Any] = []
    monkeypatch.setattr(packing._Search, "result", lambda search: searched.append(search))
    assert packs(bundles, nodes) is None
    assert searched, "the largest first leaves 4 + 4 and no room for the last 3"


@pytest.mark.parametrize(
    ("bundles", "nodes", "expected"),
    [
        ([], [], True),
        ([{}], [], True),
        (cpus(1), [], False),
        (cpus(*[0.1] * 30), cpus(1, 1, 1), True),
        (cpus(*[0.1] * 31), cpus(1, 1, 1), False),
        (cpus(3, 3, 3), cpus(4, 5), False),
        (cpus(1, 2, 3), cpus(5, 5), True),
        ([together(cpus(1, 2, 3))], cpus(5, 5), False),
        ([together(cpus(1, 2, 3))], cpus(5, 6), True),
        ([{"CPU": 1.0, "rack": 1.0}], [{"CPU": 4.0}, {"rack": 1.0}], False),
        ([{"CPU": 1.0, "rack": 1.0}], [{"CPU": 4.0}, {"CPU": 1.0, "rack": 1.0}], True),
    ],
)
def test_packing(bundles: list[Amounts], nodes: list[Amounts], expected: bool) -> None:
    assert packs(bundles, nodes) is expected


def test_a_thousand_workers_and_nodes_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(packing, "_Search")
    assert packs([*cpus(8), *cpus(*[1] * 4000)], cpus(*[8] * 501)) is True


def test_a_search_without_an_end_is_given_up() -> None:
    rng = random.Random(1)
    bundles = cpus(*(rng.randint(200, 500) for _ in range(20)))
    room = sum(bundle["CPU"] for bundle in bundles) / 6
    assert packs(bundles, cpus(*[int(room) + 1] * 6)) in (True, None)


def test_amounts_in_words() -> None:
    assert amounts_in_words({"CPU": 1.0, "GPU": 2.0}) == "1 CPU and 2 GPUs"
    assert amounts_in_words({"CPU": 0.5, "fast_disk": 2.0}) == "0.5 CPUs and 2 fast_disk"
    assert amounts_in_words({}) == "no resources"


N_STEP, STACKED, DIM, FRAGMENT = 3, 4, 84, 50
NUM_FRAGMENTS = 64


def pong(run: str = "APEX", **config: Any) -> Experiment:
    experiment: Experiment = AGENTS[run].model_validate(
        {"name": "pong", "run": run, "env": "PongNoFrameskip-v4", "config": {"n_step": N_STEP, **config}}
    )
    return experiment


def fragment(first: int, game: np.ndarray) -> FrameRows:
    """The rows of one env from its step ``first`` on; its frames are one after another of ``game``'s."""
    numbers = np.arange(first, first + FRAGMENT + STACKED - 1 + N_STEP)
    columns: dict[str, Array] = {name: np.zeros(FRAGMENT, np.float32) for name in (REWARDS, DISCOUNTS, TD_ERRORS)}
    columns[ACTIONS] = np.zeros(FRAGMENT, np.int64)
    return stacked_rows(first, game[numbers % len(game)], columns, STACKED, N_STEP)


def stored_bytes_per_transition(num_shards: int, storage: str, game: np.ndarray) -> float:
    capacity = NUM_FRAGMENTS * FRAGMENT // num_shards
    config = replace(REPLAY, capacity=capacity, train_batch_size=1, storage=storage)
    shards = [ReplayShard(config, seed) for seed in range(num_shards)]
    routing = np.random.default_rng(0)
    for first in range(0, NUM_FRAGMENTS * FRAGMENT * 2, FRAGMENT):
        shards[routing.integers(num_shards)].add_batch(fragment(first, game))
    assert all(shard.stats().size == capacity for shard in shards)
    return sum(shard.stats().nbytes for shard in shards) / (num_shards * capacity)


@pytest.mark.parametrize("num_shards", [1, 4])
def test_bytes_per_transition_matches_full_replay(num_shards: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (500, DIM, DIM, 1), np.uint8)
    experiment = pong(
        compress_observations=False,
        sample_batch_size=FRAGMENT,
        optimizer={"num_replay_buffer_shards": num_shards},
        replay_storage="local",
    )
    said = bytes_per_transition(experiment)
    assert said is not None
    taken = stored_bytes_per_transition(num_shards, "frames", game=noise)
    assert 0.93 * said <= taken <= said


def test_bytes_per_transition_bounds_compressed_replay() -> None:
    rng = np.random.default_rng(0)
    drawn = np.repeat(rng.integers(0, 256, (500, 21, 2, 1), np.uint8), DIM // 21, axis=1)
    game = np.repeat(drawn, DIM // 2, axis=2)
    said = bytes_per_transition(pong("DQN", compress_observations=True))
    assert said is not None
    assert stored_bytes_per_transition(1, "compressed_frames", game=game) <= said < DIM * DIM / 4


def test_bytes_per_transition_shared_memory_holds_two_stacks() -> None:
    said = bytes_per_transition(pong(replay_storage="shared_memory", num_workers=2, compress_observations=True))
    assert said is not None
    assert 0 < said - 2 * STACKED * DIM * DIM < 200


def test_bytes_per_transition_leaves_out_frames_on_a_gpu() -> None:
    on_gpu = bytes_per_transition(pong(replay_storage="device", num_gpus=1))
    assert on_gpu is not None
    assert on_gpu < 200
    without_gpu = bytes_per_transition(pong(replay_storage="device"))
    assert without_gpu == bytes_per_transition(pong(replay_storage="local", compress_observations=False))


@pytest.mark.parametrize(
    "model", [{"dim": 42}, {"framestack": False}, {"dim": 42, "framestack": False}], ids=["small", "single", "both"]
)
def test_bytes_per_transition_follows_model_frames(model: dict[str, Any]) -> None:
    side = model.get("dim", DIM)
    said = bytes_per_transition(pong("DQN", compress_observations=False, model=model))
    assert said is not None
    assert 0 < said - side * side < 200 + side * side / 32


@pytest.mark.parametrize(
    "experiment",
    [
        pong(preprocessor_pref="rllib"),
        AGENTS["DQN"].model_validate({"name": "a", "run": "DQN", "env": "CartPole-v1", "config": {}}),
    ],
    ids=["other frames", "no game"],
)
def test_transition_of_other_envs_has_no_estimate(experiment: Experiment) -> None:
    assert bytes_per_transition(experiment) is None
