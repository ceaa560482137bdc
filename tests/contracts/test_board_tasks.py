"""What every Board does with tasks that are submitted, cancelled, followed by another trainer, and with their rows."""

import pytest

from rlexp.board.messages.basics import KEPT_ROWS, MAX_ROW_BYTES, BoardError, Task
from rlexp.board.servers.board import Board, Fenced, Lead, News, TaskStatus, TrainerBeat
from tests.lab.board import LEASE_S, BoardPlace, claimed, eventually, kept, listed, published, taken

SUBMITTED = Task("t1", "cartpole", 1, file="cartpole:\n  env: CartPole-v1  # é\n")
ANNOUNCED = Task("t1", "another name", 3, {"env": "CartPole-v1"})
SHORT_S = 0.02


def running(board: Board) -> Lead:
    board.submit(SUBMITTED)
    lead = taken(board)
    board.announce(ANNOUNCED)
    return lead


def test_submitted_task_is_queued_and_gives_no_seats(board: Board) -> None:
    board.submit(SUBMITTED)
    assert board.describe("t1") == SUBMITTED
    assert board.claim("t1", "actor", LEASE_S) is None
    summary = listed(board)
    assert (summary.status, summary.is_submitted, summary.trainer) == (TaskStatus.QUEUED, True, None)
    assert summary.figures == {}


@pytest.mark.parametrize("submitted_first", [True, False])
def test_id_that_is_taken_is_refused(board: Board, submitted_first: bool) -> None:
    board.submit(SUBMITTED) if submitted_first else board.announce(ANNOUNCED)
    with pytest.raises(BoardError, match="already"):
        board.submit(Task("t1", "other", 1))
    assert listed(board).name == ("cartpole" if submitted_first else "another name")


def test_description_and_file_together_are_bounded(board: Board) -> None:
    half = "x" * (6 << 17)
    with pytest.raises(ValueError, match="1 MiB"):
        board.submit(Task("t1", "n", 1, {"a": half}, half))


def test_announced_task_keeps_its_file_and_gives_the_announced_seats(board: Board) -> None:
    running(board)
    assert board.describe("t1") == Task("t1", "cartpole", 3, ANNOUNCED.description, SUBMITTED.file)
    board.announce(Task("t1", "n", 9, {"env": "Other-v1"}))
    assert board.describe("t1") == Task("t1", "cartpole", 3, ANNOUNCED.description, SUBMITTED.file)
    assert [claimed(board).index for _ in range(3)] == [0, 1, 2]
    summary = listed(board)
    assert (summary.status, summary.is_submitted, summary.num_taken) == (TaskStatus.RUNNING, True, 3)


def test_list_has_the_version_of_the_weights_the_seats_that_are_taken_and_the_figures(board: Board) -> None:
    lead = running(board)
    first, _ = claimed(board), claimed(board)
    board.release(first)
    assert (listed(board).weights_version, listed(board).taken) == (-1, (1,))
    board.publish(lead, News(7))
    assert listed(board).weights_version == 7
    board.publish(lead, News(7, {}, {"num_updates": 5, "actors": {"0": None}}))
    assert listed(board).figures == {"num_updates": 5, "actors": {"0": None}}


def test_file_comes_back_after_the_board_lost_its_data(place: BoardPlace, board: Board) -> None:
    running(board)
    place.lose_data()
    board.announce(Task("t1", "cartpole", 3, ANNOUNCED.description, SUBMITTED.file))
    assert listed(board).is_submitted
    task = board.describe("t1")
    assert task is not None
    assert task.file == SUBMITTED.file


def test_queued_task_has_one_trainer(board: Board) -> None:
    board.submit(SUBMITTED)
    lead = taken(board)
    assert board.lead("t1", "other", LEASE_S) is None
    assert board.publish(lead, News()) == TrainerBeat(TaskStatus.QUEUED, (), 0)
    assert listed(board).trainer == "trainer"


def test_lead_that_is_given_up_can_be_taken_at_once(board: Board) -> None:
    lead = running(board)
    seat = claimed(board)
    board.give_up(Lead("t1", lead.epoch, "stranger", LEASE_S))
    assert board.lead("t1", "other", LEASE_S) is None
    board.give_up(lead)
    beat = kept(board, seat)
    assert (beat.status, beat.is_led) == (TaskStatus.RUNNING, False)
    after = taken(board, "other")
    assert after.epoch > lead.epoch
    assert isinstance(board.publish(lead, News()), Fenced)
    board.give_up(lead)
    assert listed(board).trainer == "other"


def test_actors_learn_whether_the_task_has_a_trainer(board: Board) -> None:
    board.submit(SUBMITTED)
    taken(board, lease_s=SHORT_S)
    board.announce(ANNOUNCED)
    seat = claimed(board)
    eventually(lambda: not kept(board, seat).is_led)
    taken(board)
    assert kept(board, seat).is_led


def test_cancelled_task_is_told_to_its_trainer_and_actors(board: Board) -> None:
    lead = running(board)
    seat = claimed(board)
    assert board.cancel("t1", "by anna")
    assert kept(board, seat).status is published(board, lead).status is TaskStatus.CANCELLED
    assert board.claim("t1", "late", LEASE_S) is None
    assert board.put_blob(lead, "result", b"the last checkpoint")
    assert board.lead("t1", "trainer", LEASE_S, lead.epoch) == lead
    board.finish(lead, TaskStatus.FAILED, "while it ended")
    summary = listed(board)
    assert (summary.status, summary.reason, summary.trainer) == (TaskStatus.CANCELLED, "by anna", None)


def test_queued_task_that_is_cancelled_is_over(board: Board) -> None:
    board.submit(SUBMITTED)
    assert board.cancel("t1", "")
    assert board.lead("t1", "trainer", LEASE_S) is None
    board.announce(ANNOUNCED)
    assert listed(board).status is TaskStatus.CANCELLED


def test_only_what_is_not_over_can_be_cancelled(board: Board) -> None:
    assert not board.cancel("t1", "")
    assert board.tasks() == []
    lead = running(board)
    board.finish(lead, TaskStatus.ENDED)
    assert not board.cancel("t1", "too late")
    assert (listed(board).status, listed(board).reason) == (TaskStatus.ENDED, "")
    assert board.lead("t1", "other", LEASE_S) is None


def test_successor_learns_what_was_received(board: Board) -> None:
    first = running(board)
    assert board.received("t1") == {}
    seats = [claimed(board), claimed(board)]
    got = {(seat.index, seat.epoch): 10 + seat.index for seat in seats}
    board.publish(first, News(0, got))
    board.give_up(first)
    taken(board, "second")
    assert board.received("t1") == got
    assert board.received("other") == {}


def test_rows_are_numbered_over_all_trainers(board: Board) -> None:
    first = running(board)
    assert board.rows("t1", 0) == board.rows("t1", 7) == []
    assert board.put_rows(first, ['{"a": 1}', "é"])
    board.give_up(first)
    second = taken(board, "second")
    assert not board.put_rows(first, ["of a former trainer"])
    assert board.put_rows(second, ["- 3"])
    assert board.rows("t1", 0) == [(0, '{"a": 1}'), (1, "é"), (2, "- 3")]
    assert board.rows("t1", 2) == [(2, "- 3")]
    assert board.rows("t1", 3) == []
    assert board.rows("other", 0) == []


def test_newest_rows_are_kept(board: Board) -> None:
    lead = running(board)
    for start in range(0, KEPT_ROWS + 100, 100):
        assert board.put_rows(lead, [str(number) for number in range(start, start + 100)])
    rows = board.rows("t1", 0)
    assert rows == [(number, str(number)) for number in range(100, KEPT_ROWS + 100)]
    assert board.rows("t1", KEPT_ROWS + 98) == rows[-2:]
    assert board.put_rows(lead, [])


def test_rows_of_a_board_that_lost_its_data_are_all_told(place: BoardPlace, board: Board) -> None:
    lead = running(board)
    assert board.put_rows(lead, ["0", "1", "2", "3"])
    place.lose_data()
    board.announce(ANNOUNCED)
    assert board.lead("t1", "trainer", LEASE_S, lead.epoch) == lead
    assert board.put_rows(lead, ["4"])
    assert board.rows("t1", 4) == [(0, "4")]


def test_row_that_is_too_long_is_refused(board: Board) -> None:
    lead = running(board)
    with pytest.raises(ValueError, match="bytes"):
        board.put_rows(lead, ["x" * (MAX_ROW_BYTES + 1)])
    assert board.rows("t1", 0) == []
