"""Which place of the ladder of ε each player has: a trial's own workers, and the seats of those who join it."""

from __future__ import annotations


def rungs(num_players: int) -> tuple[int, ...]:
    """Return the rung of each of ``num_players``, 0 to ``num_players - 1``, in van der Corput's order from the last on.

    However many of the first players are there, they are spread over the whole ladder. The first player has the last
    rung, on which is explored least: the episodes that are reported come from there.
    """
    num_bits = max(num_players - 1, 0).bit_length()
    spread = [_reversed_bits(number, num_bits) for number in range(1 << num_bits)]
    return tuple(num_players - 1 - number for number in spread if number < num_players)


def rungs_of_envs(num_players: int, num_envs: int) -> tuple[tuple[int, ...], ...]:
    """Return the rungs of each player's envs, on a ladder with one rung for every env of all players."""
    return tuple(tuple(env * num_players + rung for env in range(num_envs)) for rung in rungs(num_players))


def _reversed_bits(number: int, num_bits: int) -> int:
    return sum(1 << (num_bits - 1 - bit) for bit in range(num_bits) if number >> bit & 1)
