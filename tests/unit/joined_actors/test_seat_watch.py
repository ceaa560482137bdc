"""Who has joined, left or been lost, by the answers of the board."""

from rlexp.board.servers.board import SeatHolder
from rlexp.board.trainer.link import BoardState
from rlexp.board.trainer.source import SeatWatch


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
