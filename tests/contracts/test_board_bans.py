"""What every Board does with actors that a trainer has banned."""

from collections.abc import Iterator

import pytest

from rlexp.board.messages.errors import BannedError
from rlexp.board.messages.tasks import Task
from rlexp.board.servers.board import Beat, Board, Fenced, Lead, News, TrainerBeat
from tests.doubles.board_places import BoardPlace, MemoryPlace, RedisPlace

TASK = Task("t1", "cartpole", 4)
LONG_S = 600.0


@pytest.fixture(params=["memory", "redis"])
def board(request: pytest.FixtureRequest) -> Iterator[Board]:
    is_memory = request.param == "memory"
    place: BoardPlace = MemoryPlace() if is_memory else RedisPlace(request.getfixturevalue("redis_server"))
    yield place.board()
    place.close()


@pytest.fixture
def lead(board: Board) -> Lead:
    board.announce(TASK)
    lead = board.lead(TASK.id, "trainer", LONG_S)
    assert lead is not None
    return lead


def test_banned_actor_loses_all_its_seats_and_gets_no_other(board: Board, lead: Lead) -> None:
    members = ("alice/host-1", "bob/host-1", "alice/host-2", "alicea")
    seats = [board.claim(TASK.id, member, LONG_S) for member in members]
    board.ban(lead, "alice")
    beats = [board.beat(seat) for seat in seats if seat is not None]
    assert [type(beat) for beat in beats] == [Fenced, Beat, Fenced, Beat]
    for member in ("alice/host-1", "alice/host-9", "alice"):
        with pytest.raises(BannedError, match="task t1 has banned this actor"):
            board.claim(TASK.id, member, LONG_S)


def test_seats_of_a_banned_actor_are_free_for_others(board: Board, lead: Lead) -> None:
    lost = board.claim(TASK.id, "alice/host-1", LONG_S)
    assert lost is not None
    board.ban(lead, "alice")
    answer = board.publish(lead, News())
    assert isinstance(answer, TrainerBeat)
    (holder,) = answer.seats
    assert (holder.index, holder.member, holder.left_s) == (lost.index, "", 0)
    assert holder.epoch > lost.epoch
    taken = board.claim(TASK.id, "bob/host-1", LONG_S)
    assert taken is not None
    assert (taken.index, taken.epoch > holder.epoch) == (lost.index, True)


def test_actor_without_a_token_is_its_member(board: Board, lead: Lead) -> None:
    board.ban(lead, "host-1")
    with pytest.raises(BannedError):
        board.claim(TASK.id, "host-1", LONG_S)
    assert board.claim(TASK.id, "host-2", LONG_S) is not None


def test_only_the_trainer_bans(board: Board, lead: Lead) -> None:
    board.ban(Lead(TASK.id, lead.epoch - 1, "trainer", LONG_S), "alice")
    board.ban(Lead(TASK.id, lead.epoch, "another", LONG_S), "alice")
    board.ban(Lead("gone", lead.epoch, "trainer", LONG_S), "alice")
    assert board.claim(TASK.id, "alice", LONG_S) is not None
