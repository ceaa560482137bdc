"""Opens the board at an address, with the client library that it needs."""

from __future__ import annotations

from typing import Final

from rlexp.errors import UsageError
from rlexp.transport.address import BoardAddress
from rlexp.transport.board import Board
from rlexp.transport.boards.memory import MemoryBoard, MemoryServer

_SERVERS: Final[dict[str, MemoryServer]] = {}
"""Of this process, by name."""


def open_board(address: BoardAddress) -> Board:
    """Return a board, whose connections are made with its first calls; the caller closes it.

    Raises UsageError where the client library is not installed.
    """
    if address.scheme == "memory":
        return MemoryBoard(_SERVERS.setdefault(address.host, MemoryServer()))
    try:
        from rlexp.transport.boards.redis import RedisBoard
    except ModuleNotFoundError as error:
        raise UsageError("the client library of Redis is not installed", "pip install 'rlexp[redis]'") from error
    return RedisBoard(address)
