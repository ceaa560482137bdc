"""Joined actors and the source of their samples, over a board in memory: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rlexp.board.actor.actor import JoinedActor
from rlexp.board.actor.outbox import Outbox, SeatEnd, WeightsFeed
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import password_keys
from rlexp.board.messages.payloads import blob_name
from rlexp.board.servers.board import News, Seat, SeatHolder, TaskStatus
from rlexp.board.trainer.admission import AdmissionRules
from rlexp.board.trainer.inbox import Inbox
from rlexp.board.trainer.link import BoardLink, BoardState
from rlexp.board.trainer.row_rules import ColumnRule
from rlexp.board.trainer.source import FETCHED_BYTES_PER_S, BoardSource, SeatWatch
from rlexp.board.trainer.thread import BoardThread
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.board import BoardConfig
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import SampleBatch
from tests.lab.board import Clock, claimed, eventually, listed, taken
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import COUNTING_ENV, ENV_IDS
from tests.lab.memory_board import MemoryBoard, MemoryServer
from tests.lab.rollout import spec_of

TASK = "counting-1"
KEYS = password_keys("", TASK)
WINDOW = 4
CONFIG = BoardConfig(actors=2, window=WINDOW, beat_s=0.1, patience_s=60.0, weights_period_s=0.05)
OBS = ColumnRule(np.dtype(np.float32), (3,), 0.0, float(ENV_IDS))
RULES = AdmissionRules(
    columns={
        "obs": OBS,
        "new_obs": OBS,
        "actions": ColumnRule(np.dtype(np.int64), (), 0, 999),
        "rewards": ColumnRule(np.dtype(np.float32), ()),
        "discounts": ColumnRule(np.dtype(np.float32), (), one_of=np.array([0.0, 0.9], np.float32)),
    },
    max_rows=22,
    max_env_steps=20,
    num_waiting=2,
)


class Trial:
    """A board with a task of two seats, its trainer, and threads that join it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = MemoryServer(self.clock)
        self.board = MemoryBoard(self.server)
        self.stop_actors = threading.Event()
        self.ends: dict[str, SeatEnd] = {}
        self.actors: dict[str, JoinedActor] = {}
        self.rows: list[SampleBatch] = []
        self.versions: set[int] = set()
        self._threads: list[threading.Thread] = []
        link = BoardLink(MemoryBoard(self.server), TASK, "counting", "trainer", KEYS)
        thread = BoardThread(link, Task(TASK, "counting", 2), CONFIG)
        inbox = Inbox(TASK, KEYS, RULES, CONFIG, 1)
        self.source = BoardSource(InlineTaskPool(), thread, inbox, CONFIG)
        self.source.publish(0, {"w": np.zeros(2, np.float32)})

    def join(self, member: str) -> Seat:
        seat = self.claim(member)
        actor = JoinedActor(self.board, seat, CONFIG, KEYS, make_worker)
        self.actors[member] = actor
        thread = threading.Thread(target=self._play, args=(member, actor), daemon=True)
        self._threads.append(thread)
        thread.start()
        return seat

    def claim(self, member: str) -> Seat:
        return eventually(lambda: self.board.claim(TASK, member, 15.0))

    def collect(self, num_fragments: int) -> None:
        """Poll until so many more fragments have come."""
        wanted = len(self.rows) + num_fragments

        def polled() -> bool:
            self.source.wait(0.01)
            for sample in self.source.poll(0):
                assert sample.info.worker_index in (1, 2)
                batch = sample.batch.handle
                assert isinstance(batch, SampleBatch)
                self.rows.append(batch)
                self.versions.add(sample.info.weights_version)
            return len(self.rows) >= wanted

        eventually(polled)

    def close(self) -> None:
        self.stop_actors.set()
        self.source.stop()
        for thread in self._threads:
            thread.join(30.0)
            assert not thread.is_alive()

    def _play(self, member: str, actor: JoinedActor) -> None:
        self.ends[member] = actor.run(self.stop_actors.is_set, lambda figures: None)


def make_worker(seat: Seat) -> RolloutWorker:
    return RolloutWorker(replace(spec_of(COUNTING_ENV, ScriptedPolicy), index=seat.index, seed=seat.index))


def steps_of(rows: list[SampleBatch]) -> dict[float, list[tuple[float, float]]]:
    """Return by env the episode and step of each row, in the order in which they came."""
    found: dict[float, list[tuple[float, float]]] = {}
    for batch in rows:
        for env, episode, step in batch["obs"].tolist():
            found.setdefault(env, []).append((episode, step))
    return found


@pytest.fixture
def trial() -> Iterator[Trial]:
    trial = Trial()
    yield trial
    trial.close()


def assert_each_step_once(rows: list[SampleBatch]) -> None:
    lengths = (3, 7, 12)
    for steps in steps_of(rows).values():
        expected = [(float(episode), float(step)) for episode in range(60) for step in range(lengths[episode % 3])]
        assert steps == expected[: len(steps)]


def test_two_actors_deliver_each_step_once_and_end_with_the_task(trial: Trial) -> None:
    for member in "ab":
        trial.join(member)
    trial.collect(20)
    trial.source.stop()
    eventually(lambda: len(trial.ends) == 2)
    assert set(trial.ends.values()) == {SeatEnd.TASK_OVER}
    assert_each_step_once(trial.rows)
    assert len(steps_of(trial.rows)) == 4
    assert listed(trial.board).status is TaskStatus.ENDED


def test_newer_weights_reach_an_actor(trial: Trial) -> None:
    trial.join("a")
    trial.collect(2)
    eventually(trial.source.weights_wanted)
    trial.source.publish(5, {"w": np.ones(2, np.float32)})
    while 5 not in trial.versions:
        trial.collect(1)
    assert trial.versions == {0, 5}


def test_weights_that_come_before_their_period_is_over_wait_for_it_or_for_newer_ones(trial: Trial) -> None:
    eventually(lambda: trial.source.figures()["num_weights_published"] == 1)
    eventually(trial.source.weights_wanted)
    for version in (5, 6, 7):
        trial.source.publish(version, {"w": np.ones(2, np.float32)})
    eventually(lambda: trial.source.figures()["num_weights_published"] == 2)
    assert on_board(trial, 5, 6, 7) == [True, False, False]
    # A learner that waits for newer steps publishes nothing more.
    eventually(lambda: trial.source.poll(0) is not None and trial.source.figures()["num_weights_published"] == 3)
    assert on_board(trial, 5, 6, 7) == [True, False, True]


def on_board(trial: Trial, *versions: int) -> list[bool]:
    return [trial.board.get_blob(TASK, blob_name(version)) is not None for version in versions]


def test_period_of_weights_grows_with_their_size_and_the_actors(trial: Trial) -> None:
    num_bytes = 2_000_000
    eventually(trial.source.weights_wanted)
    trial.source.publish(7, {"w": np.random.default_rng(0).random(num_bytes // 4, np.float32)})
    eventually(lambda: trial.source.figures()["weights_bytes"] > num_bytes * 0.8)
    assert trial.source.figures()["weights_period_s"] == 0.05  # nobody fetches them
    for member in "ab":
        trial.claim(member)
    eventually(lambda: trial.source.poll(0) is not None and trial.source.figures()["actors"] == 2)
    figures = trial.source.figures()
    assert figures["weights_period_s"] == pytest.approx(2 * figures["weights_bytes"] / FETCHED_BYTES_PER_S)
    assert figures["weights_period_s"] > 0.05


def test_trainer_without_room_holds_actors_back_and_loses_nothing(trial: Trial) -> None:
    trial.join("a")
    trial.collect(1)
    eventually(lambda: trial.actors["a"].figures().num_waiting == WINDOW)
    trial.collect(12)
    assert_each_step_once(trial.rows)


def test_board_that_loses_its_data_costs_no_step(trial: Trial) -> None:
    trial.join("a")
    trial.collect(2)
    trial.server.lose_data()
    trial.collect(10)
    ordered = {env: sorted(steps) for env, steps in steps_of(trial.rows).items()}
    assert all(len(set(steps)) == len(steps) for steps in ordered.values())
    assert trial.ends == {}


def test_board_that_is_away_is_noted_once(trial: Trial) -> None:
    trial.join("a")
    trial.collect(1)
    trial.stop_actors.set()
    thread = trial.source._thread
    thread.stop()
    trial.source.drain_events()
    connected = replace(thread.state, is_connected=True)
    thread.state = connected
    trial.source.drain_events()
    thread.state = connected.disconnected()
    (event,) = trial.source.drain_events()
    assert event.startswith("the board is away")
    assert trial.source.drain_events() == []
    thread.state = replace(thread.state, is_connected=True)
    assert trial.source.drain_events() == ["the board is back"]


def test_actor_that_is_stopped_empties_its_window_and_gives_its_seat_back(trial: Trial) -> None:
    trial.join("a")
    trial.collect(2)
    trial.stop_actors.set()
    eventually(lambda: trial.source.poll(0) is not None and "a" in trial.ends)
    assert trial.ends == {"a": SeatEnd.STOPPED}
    assert trial.actors["a"].figures().num_waiting == 0
    assert listed(trial.board).num_taken == 0


def test_lease_that_runs_out_gives_the_seat_to_another_actor(trial: Trial) -> None:
    seat = trial.claim("frozen")
    trial.clock.added_s += 16.0
    taken = trial.join("b")
    assert (taken.index, taken.epoch > seat.epoch) == (seat.index, True)
    trial.collect(3)
    outbox = Outbox(trial.board, seat, WeightsFeed(trial.board, TASK, KEYS, 1000), CONFIG)
    outbox.window.put([b"too late"])
    outbox.start()
    eventually(lambda: outbox.end is SeatEnd.FENCED)
    outbox.close()
    assert outbox.num_dropped == 1
    trial.collect(3)
    assert_each_step_once(trial.rows)


def test_actor_leaves_a_task_whose_trainer_is_dead() -> None:
    clock = Clock()
    server = MemoryServer(clock)
    board = MemoryBoard(server)
    board.announce(Task(TASK, "counting", 1))
    lead, seat = taken(board, lease_s=15.0, task_id=TASK), claimed(board, "a", task_id=TASK)
    feed = WeightsFeed(board, TASK, KEYS, 1000)
    outbox = Outbox(board, seat, feed, CONFIG.model_copy(update={"beat_s": 0.01}), clock)
    outbox.start()
    eventually(lambda: outbox.is_connected)
    clock.added_s += 14.0
    board.publish(lead, News())
    clock.added_s += 50.0  # its lease has run out
    assert outbox.end is None
    clock.added_s += 50.0
    eventually(lambda: outbox.end is SeatEnd.NO_TRAINER)
    outbox.close()
    assert listed(board).num_taken == 0


def test_figures_count_what_has_come(trial: Trial) -> None:
    trial.join("a")
    trial.collect(3)
    figures = trial.source.figures()
    assert figures["actors"] == 1
    assert figures["num_fragments"] >= 3
    assert (figures["num_refused"], figures["num_lost"]) == (0, 0)
    assert trial.source.num_worker_restarts == 0


def answer(num_beats: int, at_s: float, *holders: tuple[int, str, float]) -> BoardState:
    seats = tuple(SeatHolder(seat, epoch, member, left_s) for seat, (epoch, member, left_s) in enumerate(holders))
    return BoardState(num_beats, seats, at_s)


def watch_of(*answers: BoardState) -> SeatWatch:
    watch = SeatWatch()
    for each in answers:
        watch.learn(each)
    return watch


def test_actor_that_joins_is_counted_once() -> None:
    watch = watch_of(answer(1, 0.0, (1, "a", 15.0)), answer(2, 2.0, (1, "a", 14.0)))
    assert watch.num_actors == 1
    assert watch.drain_events() == ["actor a has joined: seat 0"]


def test_lease_that_runs_out_is_a_loss() -> None:
    watch = watch_of(answer(1, 0.0, (1, "a", 1.0)), answer(2, 2.0, (1, "a", 0.0)))
    assert (watch.num_actors, watch.num_lost) == (0, 1)
    assert "actor a is lost" in watch.drain_events()[-1]


def test_lease_that_was_given_back_is_none() -> None:
    watch = watch_of(answer(1, 0.0, (1, "a", 14.0)), answer(2, 2.0, (1, "a", 0.0)))
    assert (watch.num_actors, watch.num_lost) == (0, 0)
    assert watch.drain_events()[-1] == "actor a has left seat 0"


def test_next_holder_of_a_seat_is_reported_with_the_loss_of_the_one_before() -> None:
    watch = watch_of(answer(1, 0.0, (1, "a", 1.0)), answer(2, 20.0, (2, "b", 15.0)))
    assert (watch.num_actors, watch.num_lost) == (1, 1)
    assert [event.split()[1] for event in watch.drain_events()] == ["a", "a", "b"]
