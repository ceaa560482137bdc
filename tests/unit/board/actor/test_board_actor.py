"""A joined actor plays as the trainer's workers do; what it sends is admitted, and its outbox is answered in time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.players import DQNPolicies, DQNWorkerParts
from rlexp.board.actor import outbox as outbox_module
from rlexp.board.actor.actor import JoinedActor
from rlexp.board.actor.outbox import Outbox, SeatEnd, WeightsFeed
from rlexp.board.messages.basics import MAX_BLOB_BYTES, Task
from rlexp.board.messages.credentials import password_keys
from rlexp.board.messages.payloads import Newer, blob_name, seal_weights
from rlexp.board.messages.window import NOTHING_GOT
from rlexp.board.servers.board import Beat, Seat, TaskStatus
from rlexp.board.task import SeatSpecs, describe_trial, read_description
from rlexp.board.trainer.admission import Admission, admission_rules
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.row_rules import RefusedError
from rlexp.board.trainer.source import BoardSeats
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.errors import TrialError
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import ACTIONS
from tests.lab.board import SMALL_APEX, played, trial_of
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV
from tests.lab.memory_board import MemoryBoard, MemoryServer

TASK = "task-1"
KEYS = password_keys("", TASK)
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {"n_step": 3}),
    ("CartPole-v1", {"observation_filter": "MeanStdFilter"}),
    ("CartPole-v1", {"batch_mode": "complete_episodes", "num_envs_per_worker": 2}),
    (COUNTING_ENV, {"clip_rewards": True}),
    (IMAGE_ENV, {"n_step": 2}),
]


def config_of(kind: type[DQNConfig] = ApexConfig, **changes: Any) -> DQNConfig:
    return kind.model_validate(SMALL_APEX | changes)


def task_of(env: str, config: DQNConfig) -> Task:
    return Task(TASK, "small", config.board.actors, describe_trial(config, trial_of(env, config)))


def seat_of(index: int = 0, epoch: int = 1) -> Seat:
    return Seat(TASK, index, epoch, f"actor-{index}", 15.0)


@pytest.mark.parametrize(("env", "changes"), VARIANTS, ids=["n-step", "filter", "episodes", "clipped", "frames"])
def test_rows_of_every_kind_of_player_are_admitted(env: str, changes: dict[str, Any]) -> None:
    config = config_of(**changes)
    admission = Admission(admission_rules(config, trial_of(env, config)))
    for number, (rows, info) in enumerate(played(config, env, 3)):
        admission.check(rows, info, number)


def test_description_makes_the_same_config() -> None:
    config = config_of(n_step=2, lr=0.002)
    assert read_description(task_of("CartPole-v1", config)).config == config


def test_seats_and_workers_share_one_ladder() -> None:
    config = config_of(num_workers=2, board={"actors": 6})
    network = DQNPolicies(config, *spaces_of(env_config_of("CartPole-v1", config, NO_MODULES))).network
    players = DQNWorkerParts(config, network, num_seats=6)
    epsilons = [float(players.epsilon_schedule(index).epsilons(0)[0]) for index in range(players.number)]
    assert len(set(epsilons)) == 8
    assert epsilons[0] == min(epsilons) == pytest.approx(0.4**8)
    assert epsilons[-1] == max(epsilons) == pytest.approx(0.4)
    specs = SeatSpecs(read_description(task_of("CartPole-v1", config)))
    assert [specs.constant_epsilon(seat) for seat in range(6)] == pytest.approx(epsilons[2:])


def test_epsilon_that_changes_over_time_or_explores_nothing_is_not_shown() -> None:
    for key in ("per_worker_exploration", "explore"):
        config = ApexConfig.model_validate(SMALL_APEX | {key: False})
        assert SeatSpecs(read_description(task_of("CartPole-v1", config))).constant_epsilon(0) is None


def test_continuous_actions_are_admitted_within_the_bounds_of_their_space() -> None:
    actions = gym.spaces.Box(np.float32(-2), np.float32(2), (3,))
    rule = admission_rules(config_of(), replace(trial_of("CartPole-v1", config_of()), action_space=actions)).columns[
        ACTIONS
    ]
    rule.check(ACTIONS, np.full((4, 3), 2, np.float32))
    for refused in (np.full((4, 3), 2.1, np.float32), np.zeros((4, 3), np.int64), np.zeros((4, 2), np.float32)):
        with pytest.raises(RefusedError):
            rule.check(ACTIONS, refused)


def test_each_epoch_of_a_seat_plays_other_episodes() -> None:
    specs = SeatSpecs(read_description(task_of("CartPole-v1", config_of())))
    seeds = {specs.spec(seat_of(index, epoch)).seed for index in range(2) for epoch in range(1, 4)}
    assert len(seeds) == 6


def test_env_that_plays_in_another_way_is_refused() -> None:
    task = task_of("CartPole-v1", config_of())
    other = replace(task, description={**task.description, "fingerprint": "0" * 16})
    with pytest.raises(TrialError, match="plays in another way here"):
        SeatSpecs(read_description(other))
    other = replace(task, description={**task.description, "spaces": "Discrete(3)"})
    with pytest.raises(TrialError, match="has other spaces here"):
        SeatSpecs(read_description(other))


def test_task_of_another_protocol_is_refused_with_both() -> None:
    task = task_of("CartPole-v1", config_of())
    with pytest.raises(TrialError, match="has protocol 9; this rlexp has protocol 1"):
        read_description(replace(task, description={**task.description, "protocol": 9}))
    with pytest.raises(TrialError, match="cannot be played"):
        read_description(replace(task, description={"protocol": 1, "agent": "SAC"}))


def test_description_with_anything_in_any_place_is_read_or_refused_in_a_short_message() -> None:
    task = task_of("CartPole-v1", config_of())
    anything: list[Any] = [
        *(None, True, -1, 2**63, 1e308, "", "\x1b[31m", "x" * 10_000, [], {}, [[]], [None], {"": None}),
        *({"type": "x"}, ["x" * 10_000]),
    ]
    for value in anything:
        for key in task.description:
            tried(replace(task, description={**task.description, key: value}))
        for key in DQNConfig.model_fields:
            config = {**task.description["config"], key: value}
            tried(replace(task, description={**task.description, "config": config}))


def tried(task: Task) -> None:
    try:
        description = read_description(task)
    except TrialError as error:
        message = error.message
    else:
        message = description.env
        assert type(task.description["protocol"]) is int
    assert len(message) <= 300


@pytest.mark.parametrize(("kind", "agent_class"), [(ApexConfig, ApexAgent), (DQNConfig, DQNAgent)])
def test_agent_learns_from_joined_actors(
    kind: type[DQNConfig], agent_class: type[DQNAgent[Any]], tmp_path: Path
) -> None:
    server = MemoryServer()
    link = BoardLink(MemoryBoard(server), TASK, "small", "trainer", KEYS)
    agent = agent_class("CartPole-v1", config_of(kind), InlineTaskPool(), 1, board=BoardSeats(link))
    ends: list[SeatEnd] = []
    actors = [threading.Thread(target=play, args=(server, index, ends), daemon=True) for index in range(2)]
    for thread in actors:
        thread.start()
    row = agent.train()
    while not row["info"]["num_updates"]:
        row = agent.train()
    assert isinstance(agent.optimizer, AsyncReplayOptimizer)
    assert row["info"]["board"]["num_refused"] == 0
    assert set(row["info"]["exploration_per_worker"]) == {"0", "1"}
    saved = agent.save(tmp_path / "checkpoint_000001", {})
    assert saved.is_dir()
    agent.stop()
    for thread in actors:
        thread.join(60.0)
    assert ends == [SeatEnd.TASK_OVER] * 2


def play(server: MemoryServer, index: int, ends: list[SeatEnd]) -> None:
    board, waits = MemoryBoard(server), threading.Event()
    while (seat := board.claim(TASK, f"actor-{index}", 15.0)) is None:
        waits.wait(0.01)
    task = board.describe(TASK)
    assert task is not None
    description = read_description(task)
    specs = SeatSpecs(description)
    actor = JoinedActor(board, seat, description.board, KEYS, lambda seat: RolloutWorker(specs.spec(seat)))
    ends.append(actor.run(lambda: False, lambda figures: None))


def test_actor_needs_neither_torch_nor_ray() -> None:
    code = """
import sys
sys.modules["torch"] = sys.modules["ray"] = None
from rlexp.board.task import SeatSpecs, describe_trial, read_description, PlayedTrial
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.board.actor.actor import JoinedActor
from rlexp.rollout.worker import RolloutWorker
from rlexp.board.servers.board import Seat, Task
config = ApexConfig.model_validate({"num_workers": 0})
env = env_config_of("CartPole-v1", config, NO_MODULES)
task = Task("t", "t", 1, describe_trial(config, PlayedTrial(env, 1, *spaces_of(env))))
RolloutWorker(SeatSpecs(read_description(task)).spec(Seat("t", 0, 1, "m", 15.0))).stop()
assert not {name for name in sys.modules if name.split(".")[0] in ("torch", "ray") and sys.modules[name]}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[4])


SEAT = Seat(TASK, 0, 1, "actor", 1000.0)
WAIT_S = 60.0
NEVER_S = 1000.0


class LateBoard(MemoryBoard):
    """A board that confirms a fragment with the second beat after the one that it came with."""

    def __init__(self) -> None:
        super().__init__(MemoryServer())
        self.changed = threading.Condition()
        self.num_beats = 0
        self._num_sent = 0
        self._confirmed = [NOTHING_GOT, NOTHING_GOT]

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat:
        with self.changed:
            self.num_beats += 1
            self.changed.notify_all()
        self._num_sent += len(messages)
        self._confirmed.append(self._num_sent - 1)
        return Beat(TaskStatus.RUNNING, 0, self._confirmed.pop(0))

    def get_blob(self, task_id: str, name: str, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
        assert name == blob_name(0)
        return seal_weights(TASK, 1, Newer(0, {}, None, 0), KEYS)

    def release(self, seat: Seat) -> None:
        return None


@pytest.fixture
def board() -> LateBoard:
    return LateBoard()


@pytest.fixture
def outbox(board: LateBoard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    """An outbox with a window of four, which has fetched weights and asks for nothing by itself."""
    monkeypatch.setattr(outbox_module, "UNCONFIRMED_BEAT_S", NEVER_S)
    feed = WeightsFeed(board, TASK, KEYS, 1000)
    outbox = Outbox(board, SEAT, feed, BoardConfig(window=4, beat_s=NEVER_S, lease_s=3 * NEVER_S))
    outbox.start()
    assert feed.wait(WAIT_S)
    yield outbox
    outbox.close()


def put(outbox: Outbox, count: int) -> None:
    for number in range(count):
        assert outbox.wait_for_room(WAIT_S)
        assert outbox.put(lambda _, number=number: [b"%d" % number])  # type: ignore[misc]


def test_actor_without_room_is_answered_soon(outbox: Outbox) -> None:
    put(outbox, 4)
    put(outbox, 1)  # waits for room


def test_drain_asks_at_once(outbox: Outbox, board: LateBoard) -> None:
    put(outbox, 1)
    with board.changed:
        assert board.changed.wait_for(lambda: board.num_beats == 2, WAIT_S)
    assert outbox.drain(WAIT_S)


class ConfirmedInTurn:
    """A condition of an outbox: each wait confirms one fragment more, up to ``last``, and takes all of its time."""

    def __init__(self, outbox: Outbox, last: int) -> None:
        self._window, self._last, self.num_waits = outbox.window, last, 0

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
    def notify_all(self) -> None: ...

    def wait_for(self, moved: Callable[[], bool], timeout: float) -> bool:
        assert timeout == WAIT_S
        self._window.acknowledge(min(self.num_waits, self._last), 0.0)
        self.num_waits += 1
        return moved()


@pytest.mark.parametrize(("last", "waits", "has_all"), [(3, 4, True), (1, 3, False), (-1, 1, False)])
def test_drain_waits_while_fragments_are_confirmed(
    last: int, waits: int, has_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = WeightsFeed(LateBoard(), TASK, KEYS, 1000)
    outbox = Outbox(LateBoard(), SEAT, feed, BoardConfig(window=4, beat_s=NEVER_S, lease_s=3 * NEVER_S))
    for _ in range(4):
        outbox.window.put([b"rows"])
        outbox.window.take(0.0)
    confirmed = ConfirmedInTurn(outbox, last)
    monkeypatch.setattr(outbox, "_changed", confirmed)
    assert outbox.drain(WAIT_S) is has_all
    assert confirmed.num_waits == waits


def test_fragment_that_nobody_waits_for_is_asked_about_before_it_would_be_sent_again(
    outbox: Outbox, board: LateBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "UNCONFIRMED_BEAT_S", 0.01)
    put(outbox, 1)
    with board.changed:
        assert board.changed.wait_for(lambda: board.num_beats >= 4, WAIT_S)
    assert outbox.drain(WAIT_S)
    assert outbox.window.num_sent_again == 0
