"""What only a real server shows: it ends, comes back empty, and refuses strangers."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from annotated_types import Le

from rlexp.board.messages.address import parse_address
from rlexp.board.messages.errors import BoardError, BoardLostError
from rlexp.board.messages.tasks import Task
from rlexp.board.messages.window import ReceiveWindow, SendWindow
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Beat, Board, News, Seat, TaskStatus, TrainerBeat
from rlexp.config.keys.board import BoardConfig
from rlexp.errors import RlexpError
from tests.brokers import RedisServer, running_redis

TASK = Task("t1", "cartpole", 2)
LONG_S = 600.0
SHORT_RUN_S = 120.0


@pytest.fixture(scope="module")
def locked_server() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    with running_redis(password="hidden") as server:
        yield server


@pytest.fixture
def board(locked_server: RedisServer) -> Iterator[Board]:
    locked_server.command("FLUSHALL")
    board = open_board(parse_address(locked_server.url))
    yield board
    board.close()


def has_no_password(error: RlexpError) -> bool:
    return "hidden" not in f"{error.message} {error.hint}" and "\n" not in error.message


def test_server_that_ends_is_reported_and_found_again(board: Board, locked_server: RedisServer) -> None:
    board.announce(TASK)
    lead, seat = board.lead(TASK.id, "trainer", LONG_S), board.claim(TASK.id, "actor", LONG_S)
    assert lead is not None
    assert seat is not None
    locked_server.kill()
    for call in (board.tasks, lambda: board.beat(seat, [b"x"]), lambda: board.queue(TASK.id).receive(1, 9.0)):
        with pytest.raises(BoardLostError, match="cannot be reached") as caught:
            call()
        assert has_no_password(caught.value)
    locked_server.start()
    assert board.beat(seat) == Beat(None, -1, -1)
    assert board.publish(lead, News()) == TrainerBeat(None)
    board.announce(TASK, {seat.index: seat.epoch})
    assert board.lead(TASK.id, "trainer", LONG_S, lead.epoch) == lead
    beat = board.beat(seat)
    assert isinstance(beat, Beat)
    assert beat.status is TaskStatus.RUNNING


def test_longest_lease_that_a_key_allows_can_be_read_after_the_clock_was_set_back(
    board: Board, locked_server: RedisServer
) -> None:
    (longest_s,) = (rule.le for rule in BoardConfig.model_fields["lease_s"].metadata if isinstance(rule, Le))
    assert isinstance(longest_s, int)
    board.announce(TASK)
    assert board.lead(TASK.id, "trainer", longest_s)
    assert board.claim(TASK.id, "actor", longest_s + 60.0)
    (summary,) = board.tasks()
    assert (summary.trainer, summary.taken) == ("trainer", (0,))
    assert board.unreadable.count == 0


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:hidden@"])
def test_wrong_password_is_refused(locked_server: RedisServer, login: str) -> None:
    board = open_board(parse_address(f"redis://{login}127.0.0.1:{locked_server.port}"))
    with pytest.raises(BoardError, match="password") as caught:
        board.tasks()
    assert not isinstance(caught.value, BoardLostError)
    assert has_no_password(caught.value)
    assert caught.value.hint is not None
    board.close()


def test_full_server_is_reported(board: Board, locked_server: RedisServer) -> None:
    board.announce(TASK)
    locked_server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(BoardLostError, match="takes nothing now"):
            board.queue(TASK.id).send([b"x"])
    finally:
        locked_server.command("CONFIG", "SET", "maxmemory", "0")


def test_what_comes_after_the_end_of_a_task_does_not_stay(board: Board, locked_server: RedisServer) -> None:
    board.announce(TASK)
    lead, seat = board.lead(TASK.id, "trainer", LONG_S), board.claim(TASK.id, "actor", LONG_S)
    assert lead is not None
    assert seat is not None
    board.finish(lead, TaskStatus.ENDED)
    board.beat(seat, [b"too late"])
    assert locked_server.command("LLEN", "rlexp:{t1}:in:0") == b":1\r\n"
    board.announce(replace(TASK, id="t2"))
    assert locked_server.command("LLEN", "rlexp:{t1}:in:0") == b":0\r\n"
    assert [task.id for task in board.tasks()] == ["t1", "t2"]


def test_task_that_cannot_be_read_does_not_hide_others(board: Board, locked_server: RedisServer) -> None:
    board.announce(TASK)
    locked_server.command("SADD", "rlexp:tasks", "gone", "strange", "a:b", "x" * 99)
    locked_server.command("HSET", "rlexp:{strange}:task", "name", "n", "status", "DANCING", "seats", "many")
    assert [task.id for task in board.tasks()] == [TASK.id]
    with pytest.raises(BoardError, match="cannot be read"):
        board.describe("strange")
    assert board.describe("gone") is None


class Sender(threading.Thread):
    """An actor whose clock runs a hundred times as fast, so that standstills are short."""

    def __init__(self, board: Board, seat: Seat, count: int) -> None:
        super().__init__()
        self.window = SendWindow(32)
        self._board, self._seat, self._count = board, seat, count

    def run(self) -> None:
        ends_at = time.monotonic() + SHORT_RUN_S
        while self.window.got < self._count - 1 and time.monotonic() < ends_at:
            while self.window.has_room and self.window.next_number < self._count:
                self.window.put([b"%d %d" % (self._seat.index, self.window.next_number)])
            now_s = 100 * time.monotonic()
            beat = self._board.beat(self._seat, self.window.take(now_s))
            assert isinstance(beat, Beat)
            self.window.acknowledge(beat.got, now_s)


def test_nothing_is_lost_or_doubled_while_the_board_loses_its_data(board: Board, locked_server: RedisServer) -> None:
    count, num_losses = 400, 5
    board.announce(TASK)
    lead = board.lead(TASK.id, "trainer", LONG_S)
    assert lead is not None
    seats = [seat for member in "ab" if (seat := board.claim(TASK.id, member, LONG_S))]
    senders = [Sender(board, seat, count) for seat in seats]
    windows = [ReceiveWindow(32) for _ in seats]
    stored: list[bytes] = []
    for sender in senders:
        sender.start()
    ends_at = time.monotonic() + SHORT_RUN_S
    queue = board.queue(TASK.id)
    while any(sender.is_alive() for sender in senders) and time.monotonic() < ends_at:
        for message in queue.receive(16, 0.05):
            index, number = map(int, message.split())
            if windows[index].admit(number):
                stored.append(message)
                windows[index].settle(number)
        if num_losses and len(stored) > 100 * (6 - num_losses):
            num_losses -= 1
            locked_server.command("FLUSHALL")
        got = {(seat.index, seat.epoch): windows[seat.index].got for seat in seats}
        beat = board.publish(lead, News(0, got))
        if beat == TrainerBeat(None):
            board.announce(TASK, {seat.index: seat.epoch for seat in seats})
            assert board.lead(TASK.id, "trainer", LONG_S, lead.epoch) == lead
    for sender in senders:
        sender.join(SHORT_RUN_S)
        assert sender.window.got == count - 1
    assert num_losses == 0
    assert len(stored) == len(set(stored)) == 2 * count
