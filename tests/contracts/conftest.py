"""The servers over which the contracts of boards are tested."""

from collections.abc import Iterator

import pytest

from rlexp.board.servers.board import Board
from tests.lab.board import BoardPlace, MemoryPlace, RedisPlace


@pytest.fixture(params=["memory", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[BoardPlace]:
    place = MemoryPlace() if request.param == "memory" else RedisPlace(request.getfixturevalue("redis_server"))
    yield place
    place.close()


@pytest.fixture
def board(place: BoardPlace) -> Board:
    return place.board()
