from rlexp.board.messages.errors import LONGEST_S, Backoff


def test_waits_double_up_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(seed=1)
    waits = [backoff.failed() for _ in range(9)]
    for wait_s, longest_s in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30, 30], strict=True):
        assert 0.75 * longest_s <= wait_s <= min(longest_s, LONGEST_S)
    backoff.succeeded()
    assert backoff.failed() <= 1


def test_two_members_do_not_wait_equally_long() -> None:
    assert Backoff(seed=1).failed() != Backoff(seed=2).failed()
