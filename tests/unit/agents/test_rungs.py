"""The order of seats on the ladder of ε."""

from itertools import pairwise

import pytest

from rlexp.agents.dqn.players import rungs, rungs_of_envs


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13, 100])
def test_rungs_are_each_given_once(number: int) -> None:
    assert sorted(rungs(number)) == list(range(number))


def test_first_player_explores_least_and_the_second_is_far_from_it() -> None:
    assert rungs(8) == (7, 3, 5, 1, 6, 2, 4, 0)
    assert rungs(1) == (0,)


def test_any_number_of_first_players_spans_the_ladder() -> None:
    order = rungs(16)
    for present in range(2, 16):
        taken = sorted(order[:present])
        gaps = [after - before for before, after in pairwise(taken)]
        assert max([*gaps, taken[0]]) <= 2 * 16 / present


def test_rungs_of_envs_are_each_given_once() -> None:
    given = rungs_of_envs(3, 4)
    assert sorted(rung for player in given for rung in player) == list(range(12))
    assert all(max(player) - min(player) == 9 for player in given)
