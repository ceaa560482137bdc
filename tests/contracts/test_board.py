"""What every Board does with tasks, seats, leads, blobs and banned actors, whatever its server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlexp.board.messages.basics import CHUNK_BYTES, BannedError, Task
from rlexp.board.messages.window import NOTHING_GOT
from rlexp.board.servers.board import Beat, Board, Fenced, Lead, News, Seat, TaskStatus, TrainerBeat
from tests.lab.board import LEASE_S, BoardPlace, claimed, eventually, kept, led, listed, published, taken

TASK = Task("t1", "cartpole", 2, {"config": {"env": "CartPole-v1", "lr": 0.5}})
SHORT_S = 0.02


def test_announced_task_is_listed_and_described(board: Board) -> None:
    assert board.tasks() == []
    assert board.describe(TASK.id) is None
    board.announce(TASK)
    board.announce(Task(TASK.id, "another name", 9))
    assert board.describe(TASK.id) == TASK
    summary = listed(board)
    assert (summary.id, summary.name, summary.status, summary.num_seats) == ("t1", "cartpole", TaskStatus.RUNNING, 2)
    assert (summary.num_taken, summary.trainer, summary.reason, summary.is_submitted) == (0, None, "", False)
    assert 0 <= summary.age_s < 60


def test_tasks_are_separate(board: Board) -> None:
    led(board, TASK)
    led(board, Task("t2", "other", 1))
    assert [task.id for task in board.tasks()] == ["t1", "t2"]
    seat = claimed(board, "a", task_id="t2")
    assert (seat.task_id, seat.index) == ("t2", 0)
    assert board.claim("t2", "b", LEASE_S) is None
    assert claimed(board, "b").task_id == "t1"


@pytest.mark.parametrize("task_id", ["", "a b", "a:b", "{a}", "é", "x" * 65])
def test_task_id_with_other_characters_is_refused(board: Board, task_id: str) -> None:
    with pytest.raises(ValueError, match="characters"):
        board.announce(Task(task_id, "n", 1))


@pytest.mark.parametrize("task", [Task("t", "n", 0), Task("t", "n", 1, {"a": "x" * (1 << 20)})])
def test_task_beyond_bounds_is_refused(board: Board, task: Task) -> None:
    with pytest.raises(ValueError, match=r"seats|1 MiB"):
        board.announce(task)


def test_seats_are_given_out_in_order_until_none_is_free(board: Board) -> None:
    assert board.claim(TASK.id, "a", LEASE_S) is None
    board.announce(TASK)
    seats = [claimed(board, "a"), claimed(board, "b")]
    assert [seat.index for seat in seats] == [0, 1]
    assert [seat.member for seat in seats] == ["a", "b"]
    assert board.claim(TASK.id, "c", LEASE_S) is None
    assert listed(board).taken == (0, 1)


def test_released_seat_is_free_at_once_with_a_higher_epoch(board: Board) -> None:
    board.announce(TASK)
    seat = claimed(board, "a")
    board.release(seat)
    again = claimed(board, "b")
    assert (again.index, again.epoch > seat.epoch) == (0, True)
    board.release(seat)
    assert claimed(board, "c").index == 1
    assert isinstance(kept(board, again), Beat)


def test_seat_without_beats_is_given_to_another_and_its_holder_is_fenced(board: Board) -> None:
    board.announce(Task(TASK.id, "n", 1))
    late = claimed(board, "a", SHORT_S)
    seat = eventually(lambda: board.claim(TASK.id, "b", LEASE_S))
    assert (seat.index, seat.epoch > late.epoch) == (0, True)
    assert isinstance(board.beat(late), Fenced)
    assert kept(board, seat).status is TaskStatus.RUNNING


def test_late_beat_keeps_a_seat_that_nobody_took(board: Board) -> None:
    lead = led(board, TASK)
    seat = claimed(board, "a", SHORT_S)
    eventually(lambda: published(board, lead).seats[0].left_s == 0)
    assert kept(board, Seat(seat.task_id, seat.index, seat.epoch, "a", LEASE_S)).got == NOTHING_GOT
    assert claimed(board, "b").index == 1


def test_same_epoch_of_another_member_is_fenced(board: Board) -> None:
    board.announce(TASK)
    seat = claimed(board, "a")
    assert isinstance(board.beat(Seat(TASK.id, seat.index, seat.epoch, "b", LEASE_S)), Fenced)


def test_many_at_once_never_have_the_same_seat(place: BoardPlace) -> None:
    place.board().announce(TASK)
    boards = [place.board() for _ in range(8)]
    ready = threading.Barrier(len(boards))

    def claims(member: int) -> Seat | None:
        ready.wait(60)
        return boards[member].claim(TASK.id, str(member), LEASE_S)

    with ThreadPoolExecutor(len(boards)) as pool:
        for _ in range(10):
            seats = [seat for seat in pool.map(claims, range(len(boards))) if seat]
            assert sorted(seat.index for seat in seats) == [0, 1]
            for seat in seats:
                boards[0].release(seat)


def test_beat_tells_what_the_trainer_published(board: Board) -> None:
    lead = led(board, TASK)
    seat, other = claimed(board, "a"), claimed(board, "b")
    assert (kept(board, seat).weights_version, kept(board, seat).got) == (-1, NOTHING_GOT)
    published(board, lead, News(7, {(seat.index, seat.epoch): 3}, {"updates": 5}))
    assert (kept(board, seat).weights_version, kept(board, seat).got) == (7, 3)
    assert kept(board, other).got == NOTHING_GOT
    published(board, lead, News(8, {(other.index, other.epoch): 0}))
    assert (kept(board, seat).weights_version, kept(board, seat).got) == (8, 3)
    assert kept(board, other).got == 0


def test_what_was_received_never_goes_down_nor_to_another_holder(board: Board) -> None:
    lead = led(board, TASK)
    seat = claimed(board, "a")
    published(board, lead, News(0, {(0, seat.epoch): 9}))
    published(board, lead, News(0, {(0, seat.epoch): 4}))
    assert kept(board, seat).got == 9
    board.release(seat)
    after = claimed(board, "b")
    published(board, lead, News(0, {(0, seat.epoch): 12}))
    assert kept(board, after).got == NOTHING_GOT


def test_trainer_learns_who_holds_the_seats(board: Board) -> None:
    lead = led(board, TASK)
    assert published(board, lead).seats == ()
    seats = [claimed(board, "a"), claimed(board, "b with spaces")]
    board.release(seats[0])
    holders = published(board, lead).seats
    assert [(holder.index, holder.epoch, holder.member) for holder in holders] == [
        (seat.index, seat.epoch, seat.member) for seat in seats
    ]
    assert holders[0].left_s == 0
    assert 0 < holders[1].left_s <= LEASE_S


def test_messages_go_to_the_queue_with_a_beat(board: Board) -> None:
    lead = led(board, TASK)
    seat = claimed(board, "a")
    assert kept(board, seat, [b"one", b"two"]).num_queued == published(board, lead).num_queued == 2
    assert board.queue(TASK.id).receive(9, 0) == [b"one", b"two"]
    assert kept(board, seat).num_queued == 0


def test_second_trainer_waits_for_the_lease(board: Board) -> None:
    assert board.lead(TASK.id, "first", LEASE_S) is None
    board.announce(TASK)
    lead = taken(board, "first", SHORT_S)
    after = eventually(lambda: board.lead(TASK.id, "second", LEASE_S))
    assert after.epoch > lead.epoch
    assert board.lead(TASK.id, "third", LEASE_S) is None
    assert listed(board).trainer == "second"


def test_writes_of_a_former_trainer_are_refused(board: Board) -> None:
    board.announce(TASK)
    zombie = taken(board, "first", SHORT_S)
    seat = claimed(board, "a")
    assert board.put_blob(zombie, "weights-1", b"first")
    lead = eventually(lambda: board.lead(TASK.id, "second", LEASE_S))
    assert isinstance(board.publish(zombie, News(99, {(0, seat.epoch): 99})), Fenced)
    assert not board.put_blob(zombie, "weights-1", b"zombie")
    board.drop_blob(zombie, "weights-1")
    board.finish(zombie, TaskStatus.FAILED, "zombie")
    assert board.lead(TASK.id, "first", LEASE_S, zombie.epoch) is None
    assert kept(board, seat) == Beat(TaskStatus.RUNNING, -1, NOTHING_GOT, 0)
    assert board.get_blob(TASK.id, "weights-1") == b"first"
    assert published(board, lead).status is TaskStatus.RUNNING


def test_finished_task_sends_its_actors_home(board: Board) -> None:
    lead = led(board, TASK)
    seat = claimed(board, "a")
    board.finish(lead, TaskStatus.FAILED, "no memory left")
    assert kept(board, seat).status is TaskStatus.FAILED
    assert TaskStatus.FAILED.is_over
    assert board.claim(TASK.id, "b", LEASE_S) is None
    summary = listed(board)
    assert (summary.status, summary.reason, summary.trainer) == (TaskStatus.FAILED, "no memory left", None)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
def test_blobs_come_back_whole(board: Board, size: int) -> None:
    lead = led(board, TASK)
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert board.get_blob(TASK.id, "b") is None
    assert board.put_blob(lead, "b", b"before")
    assert board.put_blob(lead, "b", content)
    assert board.get_blob(TASK.id, "b") == content
    board.drop_blob(lead, "b")
    board.drop_blob(lead, "b")
    assert board.get_blob(TASK.id, "b") is None


def test_board_that_lost_its_data_is_filled_again(place: BoardPlace, board: Board) -> None:
    lead = led(board, TASK)
    seat = claimed(board, "a")
    published(board, lead, News(4, {(0, seat.epoch): 6}))
    place.lose_data()

    assert kept(board, seat) == Beat(None, -1, NOTHING_GOT)
    assert board.publish(lead, News(4)) == TrainerBeat(None)
    assert board.claim(TASK.id, "b", LEASE_S) is None
    board.announce(TASK, {0: seat.epoch})
    assert board.lead(TASK.id, "trainer", LEASE_S, lead.epoch) == lead
    published(board, lead, News(4, {(0, seat.epoch): 6}))
    assert (kept(board, seat).weights_version, kept(board, seat).got) == (4, 6)
    assert claimed(board, "b").index == 1


def test_seat_that_was_taken_after_a_loss_has_a_higher_epoch(place: BoardPlace, board: Board) -> None:
    lead = led(board, TASK)
    before = claimed(board, "a")
    place.lose_data()
    board.announce(TASK, {0: before.epoch})
    after = claimed(board, "b")
    assert (after.index, after.epoch > before.epoch) == (0, True)
    assert isinstance(board.beat(before), Fenced)
    assert board.lead(TASK.id, "trainer", LEASE_S, lead.epoch) is not None
    assert [holder.member for holder in published(board, lead).seats] == ["b"]


@pytest.fixture
def lead(board: Board) -> Lead:
    return led(board, Task(TASK.id, "cartpole", 4))


def test_banned_actor_loses_all_its_seats_and_gets_no_other(board: Board, lead: Lead) -> None:
    members = ("alice/host-1", "bob/host-1", "alice/host-2", "alicea")
    seats = [claimed(board, member) for member in members]
    board.ban(lead, "alice")
    beats = [board.beat(seat) for seat in seats]
    assert [type(beat) for beat in beats] == [Fenced, Beat, Fenced, Beat]
    for member in ("alice/host-1", "alice/host-9", "alice"):
        with pytest.raises(BannedError, match="task t1 has banned this actor"):
            board.claim(TASK.id, member, LEASE_S)


def test_seats_of_a_banned_actor_are_free_for_others(board: Board, lead: Lead) -> None:
    lost = claimed(board, "alice/host-1")
    board.ban(lead, "alice")
    (holder,) = published(board, lead).seats
    assert (holder.index, holder.member, holder.left_s) == (lost.index, "", 0)
    assert holder.epoch > lost.epoch
    seat = claimed(board, "bob/host-1")
    assert (seat.index, seat.epoch > holder.epoch) == (lost.index, True)


def test_actor_without_a_token_is_its_member(board: Board, lead: Lead) -> None:
    board.ban(lead, "host-1")
    with pytest.raises(BannedError):
        board.claim(TASK.id, "host-1", LEASE_S)
    assert board.claim(TASK.id, "host-2", LEASE_S) is not None


def test_only_the_trainer_bans(board: Board, lead: Lead) -> None:
    board.ban(Lead(TASK.id, lead.epoch - 1, "trainer", LEASE_S), "alice")
    board.ban(Lead(TASK.id, lead.epoch, "another", LEASE_S), "alice")
    board.ban(Lead("gone", lead.epoch, "trainer", LEASE_S), "alice")
    assert board.claim(TASK.id, "alice", LEASE_S) is not None
