"""When an outbox asks how far its fragments have come: soon where its actor waits for that, else with the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from rlexp.board.actor import outbox as outbox_module
from rlexp.board.actor.outbox import Outbox, WeightsFeed
from rlexp.board.messages.credentials import SharedKeys
from rlexp.board.messages.payloads import Newer, blob_name, seal_weights
from rlexp.board.messages.window import NOTHING_GOT, SendWindow
from rlexp.board.servers.board import Beat, Seat, TaskStatus
from tests.doubles.memory_board import MemoryBoard, MemoryServer

TASK = "task-1"
KEYS = SharedKeys.of("", TASK)
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

    def get_blob(self, task_id: str, name: str) -> bytes | None:
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
    outbox = Outbox(board, SEAT, SendWindow(4), feed, NEVER_S)
    outbox.start()
    assert feed.wait(WAIT_S)
    yield outbox
    outbox.close()


def put(outbox: Outbox, count: int) -> None:
    for number in range(count):
        assert outbox.put(lambda _, number=number: [b"%d" % number], WAIT_S)  # type: ignore[misc]


def test_actor_without_room_is_answered_soon(outbox: Outbox) -> None:
    put(outbox, 4)
    put(outbox, 1)  # waits for room


def test_drain_asks_at_once(outbox: Outbox, board: LateBoard) -> None:
    put(outbox, 1)
    with board.changed:
        assert board.changed.wait_for(lambda: board.num_beats == 2, WAIT_S)
    assert outbox.drain(WAIT_S)


def test_fragment_that_nobody_waits_for_is_asked_about_before_it_would_be_sent_again(
    outbox: Outbox, board: LateBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "UNCONFIRMED_BEAT_S", 0.01)
    put(outbox, 1)
    with board.changed:
        assert board.changed.wait_for(lambda: board.num_beats >= 4, WAIT_S)
    assert outbox.drain(WAIT_S)
    assert outbox.window.num_sent_again == 0
