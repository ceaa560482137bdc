"""Servers that tests reach by several boards, whatever their kind."""

from typing import Protocol

from rlexp.transport.address import parse_address
from rlexp.transport.board import Board
from rlexp.transport.boards.memory import MemoryBoard, MemoryServer
from rlexp.transport.opening import open_board
from tests.brokers import RedisServer


class BoardPlace(Protocol):
    def board(self) -> Board:
        """Return another board of this server."""
        ...

    def lose_data(self) -> None:
        """Do what a server does that restarts without its data."""
        ...

    def close(self) -> None:
        """Close every board."""
        ...


class MemoryPlace:
    def __init__(self) -> None:
        self.server = MemoryServer()

    def board(self) -> Board:
        return MemoryBoard(self.server)

    def lose_data(self) -> None:
        self.server.lose_data()

    def close(self) -> None:
        pass


class RedisPlace:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._boards: list[Board] = []
        self._server.command("FLUSHALL")

    def board(self) -> Board:
        self._boards.append(open_board(parse_address(self._server.url)))
        return self._boards[-1]

    def lose_data(self) -> None:
        self._server.command("FLUSHALL")
        self._server.command("SCRIPT", "FLUSH")

    def close(self) -> None:
        for board in self._boards:
            board.close()
            board.close()
