"""Keys of ``board``: an Ape-X trial with a board in memory, and actors that play for it in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.board.actor import actor as joined_actor
from rlexp.board.actor.actor import ActorFigures
from rlexp.board.actor.joiner import JoinedTask
from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.messages.basics import BannedError, Task
from rlexp.board.messages.credentials import JoinToken, MasterKey, TrainerKeys, password_keys
from rlexp.board.messages.envelope import Header, read_message
from rlexp.board.messages.payloads import blob_name, open_weights, seal_fragment
from rlexp.board.servers.board import Fenced, Seat
from rlexp.board.task import read_description
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.source import BoardSeats
from rlexp.config.keys.apex import ApexConfig
from rlexp.errors import TrialError
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.rollout.source import Sample
from rlexp.sample_batch import SampleBatch
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab.agents import ONE_SHARD, STEPS, TINY, CountingPool
from tests.lab.board import claimed, eventually
from tests.lab.memory_board import MemoryBoard, MemoryServer

TASK = "task-1"
KEYS = password_keys("", TASK)
EMPTY_REPORT = SampleInfo(0, 4, 4, Episodes.join([]), 0, SampleTime())
WAIT_S = 60.0
LONG_S = 1000.0


@pytest.fixture(autouse=True)
def no_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let actors end at once, although nobody polls what they have sent."""
    monkeypatch.setattr(joined_actor, "DRAIN_S", 0.05)


class Recorder:
    """An ActorView that keeps what it is shown."""

    def __init__(self) -> None:
        self.figures: list[ActorFigures] = []

    def note(self, text: str) -> None:
        return None

    def on_seat(self, seat: int, num_seats: int, task: str, env: str) -> None:
        return None

    def on_figures(self, figures: ActorFigures, epsilon: float | None) -> None:
        self.figures.append(figures)

    def on_left(self, figures: ActorFigures, task: str, why: str) -> None:
        return None


class ClaimedBoard(MemoryBoard):
    """A board that keeps the seats that were claimed."""

    def __init__(self) -> None:
        super().__init__(MemoryServer())
        self.claimed: list[Seat] = []

    def claim(self, task_id: str, member: str, lease_s: float) -> Seat | None:
        seat = super().claim(task_id, member, lease_s)
        if seat is not None:
            self.claimed.append(seat)
        return seat


@pytest.fixture
def board() -> MemoryBoard:
    return MemoryBoard(MemoryServer())


@contextmanager
def trial(board: MemoryBoard, keys: TrainerKeys = KEYS, **given: Any) -> Iterator[ApexAgent]:
    """Provide an agent whose trial is on ``board``; ``given`` is under ``config.board``."""
    config = ApexConfig.model_validate({**TINY, "optimizer": ONE_SHARD, "board": {"lease_s": LONG_S, **given}})
    link = BoardLink(board, TASK, "a trial", "trainer", keys)
    agent = ApexAgent("CartPole-v1", config, CountingPool(), 0, board=BoardSeats(link))
    try:
        eventually(lambda: board.describe(TASK) is not None and board.tasks()[0].trainer is not None)
        yield agent
    finally:
        agent.stop()


@contextmanager
def actor(board: MemoryBoard, member: str = "actor", token: JoinToken | None = None) -> Iterator[Recorder]:
    """Play for the trial in a thread, as ``rlexp join`` does, until the body ends."""
    recorder, stopping = Recorder(), threading.Event()
    player = JoinedTask(board, member, "", TrustedCode(), recorder, token)
    thread = threading.Thread(target=player.play, args=(task_of(board), stopping.is_set))
    thread.start()
    try:
        yield recorder
    finally:
        stopping.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def task_of(board: MemoryBoard) -> Task:
    task = board.describe(TASK)
    assert task is not None
    return task


def polled(agent: ApexAgent) -> list[Sample]:
    """Poll until samples have come; return them."""
    return eventually(lambda: agent.source.poll(0))


@pytest.mark.key("board.actors")
def test_so_many_actors_can_take_a_seat(board: MemoryBoard) -> None:
    with trial(board, actors=2) as agent:
        assert [board.claim(TASK, f"actor {number}", LONG_S) is None for number in range(3)] == [False, False, True]
        assert len(agent.stats()["exploration_per_worker"]) == 2


@pytest.mark.key("board.min_actors", "board.window")
def test_actor_fills_its_window_and_waits_until_enough_actors_are_there(board: MemoryBoard) -> None:
    with trial(board, actors=2, min_actors=2, window=3) as agent, actor(board) as recorder:
        eventually(lambda: len(recorder.figures) == 3)
        for _ in range(20):
            agent.source.wait(0.05)  # ends with a message that has come
            assert agent.source.poll(0) == []
        assert [figures.num_waiting for figures in recorder.figures] == [1, 2, 3]
        assert board.claim(TASK, "another one", LONG_S) is not None
        assert polled(agent)
        eventually(lambda: agent.source.poll(0) or len(recorder.figures) > 3)


@pytest.mark.key("board.min_fragment_steps")
@pytest.mark.parametrize(("least", "expected"), [(1, STEPS), (60, 60)])
def test_fragments_have_so_many_steps_at_least(board: MemoryBoard, least: int, expected: int) -> None:
    with trial(board, min_fragment_steps=least) as agent, actor(board):
        steps = [sample.info.num_env_steps for sample in polled(agent)]
    assert all(expected - 8 < number <= expected for number in steps), steps  # a reset of an env is no step


@pytest.mark.key("board.lease_s")
def test_seat_is_leased_for_so_long() -> None:
    board = ClaimedBoard()
    with trial(board, lease_s=123.0), actor(board):
        eventually(lambda: board.claimed)
    assert board.claimed[0].lease_s == 123.0


@pytest.mark.key("board.beat_s")
def test_actor_beats_so_often(board: MemoryBoard) -> None:
    with trial(board, beat_s=0.25):
        assert read_description(task_of(board)).board.beat_s == 0.25


@pytest.mark.key("board.patience_s")
def test_trial_fails_where_no_actor_comes_for_so_long(board: MemoryBoard) -> None:
    with trial(board, patience_s=0.05) as agent, pytest.raises(TrialError, match=r"0 of 1 actors .* 0.05 s") as raised:
        eventually(lambda: agent.source.poll(0))
    assert "rlexp join" in str(raised.value.hint)


@pytest.mark.key("board.weights_period_s")
@pytest.mark.parametrize(("period_s", "is_wanted"), [(LONG_S, False), (1e-9, True)])
def test_weights_are_published_so_often_at_most(board: MemoryBoard, period_s: float, is_wanted: bool) -> None:
    with trial(board, weights_period_s=period_s) as agent:
        assert agent.source.weights_wanted() is is_wanted  # the first ones were published when it began


@pytest.mark.key("board.weights_dtype")
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 0.0), ("float16", 2**-11)])
def test_weights_are_sent_in_this_precision_and_used_in_float32(
    board: MemoryBoard, dtype: str, rounding: float
) -> None:
    with trial(board, weights_dtype=dtype) as agent:
        eventually(lambda: agent.stats()["board"]["num_weights_published"])
        with agent.optimizer.paused() as learner:
            learned = learner.get_weights()
        blob = board.get_blob(TASK, blob_name(0))
        assert blob is not None
        assert {column.dtype for column in read_message(blob, KEYS.published_key, 1 << 20).header.columns} == {dtype}
        received = open_weights(blob, TASK, 0, KEYS, 1 << 20).weights
    assert received.keys() == learned.keys()
    for name, array in received.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, learned[name], rtol=rounding, atol=rounding * 2**-13)


@pytest.mark.key("board.max_fragment_mb")
def test_larger_fragments_are_refused(board: MemoryBoard) -> None:
    with trial(board, max_fragment_mb=1e-6) as agent, actor(board):
        eventually(lambda: agent.source.poll(0) or agent.stats()["board"]["num_refused"])
        assert "at most 1 are allowed" in agent.stats()["board"]["last_refusal"]


@pytest.mark.key("board.max_weights_mb")
@pytest.mark.parametrize(("limit_mb", "num_refused"), [(1e-6, 1), (64.0, 0)])
def test_actors_refuse_larger_weights(board: MemoryBoard, limit_mb: float, num_refused: int) -> None:
    with trial(board, max_weights_mb=limit_mb) as agent:
        eventually(lambda: agent.stats()["board"]["num_weights_published"])
        feed = WeightsFeed(board, TASK, KEYS, int(read_description(task_of(board)).board.max_weights_mb * 1e6))
        feed.fetch(0)
    assert feed.num_refused == num_refused


@pytest.mark.key("board.max_strikes")
def test_actor_is_banned_after_so_many_invalid_fragments(board: MemoryBoard) -> None:
    rows = SampleBatch({"obs": np.zeros((4, 2), np.float32)})
    with trial(board, max_strikes=2) as agent:
        seat = claimed(board, "a liar", task_id=TASK)
        events: list[str] = []
        for number in range(2):
            assert not any("is banned" in event for event in events)
            header = Header(TASK, seat.index, seat.epoch, number)
            board.beat(seat, seal_fragment(header, rows, EMPTY_REPORT, KEYS.key, 1 << 20))
            eventually(lambda: agent.source.poll(0) or agent.stats()["board"]["num_refused"] > number)  # noqa: B023
            events += agent.drain_events()
        assert any("a liar is banned after 2 invalid fragments" in event for event in events)
        eventually(lambda: agent.source.poll(0) or isinstance(board.beat(seat), Fenced))
        with pytest.raises(BannedError):
            board.claim(TASK, "a liar", LONG_S)


@pytest.mark.key("board.max_abs_reward")
@pytest.mark.parametrize(("limit", "is_refused"), [(0.5, True), (1.0, False)])
def test_larger_rewards_are_refused(board: MemoryBoard, limit: float, is_refused: bool) -> None:
    """CartPole gives 1 for each step."""
    with trial(board, max_abs_reward=limit, max_strikes=1000) as agent, actor(board):
        taken: list[Sample] = []

        def has_come() -> bool:
            taken.extend(agent.source.poll(0))
            return bool(taken or agent.stats()["board"]["num_refused"])

        eventually(has_come)
        assert bool(taken) is not is_refused


@pytest.mark.key("board.refused_actors")
def test_tokens_of_refused_actors_are_not_accepted(board: MemoryBoard) -> None:
    pytest.importorskip("cryptography")
    master = MasterKey.new()
    with trial(board, keys=master.keys(TASK), refused_actors=["alice"]) as agent:
        eventually(lambda: agent.source.poll(0) or is_banned(board, "alice/a process"))
        with actor(board, "bob/a process", master.token("bob")):
            assert polled(agent)
        player = JoinedTask(board, "alice/b", "", TrustedCode(), Recorder(), master.token("alice"))
        with pytest.raises(TrialError, match="has banned this actor"):
            player.play(task_of(board), lambda: True)


def is_banned(board: MemoryBoard, member: str) -> bool:
    try:
        seat = board.claim(TASK, member, LONG_S)
    except BannedError:
        return True
    if seat is not None:
        board.release(seat)
    return False


def test_actor_without_the_right_token_is_kept_from_the_task(board: MemoryBoard) -> None:
    pytest.importorskip("cryptography")
    master = MasterKey.new()
    with trial(board, keys=master.keys(TASK)):
        without, stranger, own = (
            JoinedTask(board, "a/b", "", TrustedCode(), Recorder(), token).obstacle(task_of(board))
            for token in (None, MasterKey.new().token("alice"), master.token("alice"))
        )
    assert without is not None
    assert "join token" in without.message
    assert "--token @FILE" in without.hint
    assert stranger is not None
    assert stranger.message == "is not signed by the trainer of this actor's token"
    assert own is None


def test_actor_with_a_token_does_not_play_an_unsigned_task(board: MemoryBoard) -> None:
    pytest.importorskip("cryptography")
    token = MasterKey.new().token("alice")
    with trial(board):
        obstacle = JoinedTask(board, "alice/b", "", TrustedCode(), Recorder(), token).obstacle(task_of(board))
    assert obstacle is not None
    assert obstacle.message == "is not signed, and this actor has a token"
