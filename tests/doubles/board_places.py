"""Servers that tests reach by several boards, whatever their kind."""

import secrets
from typing import Protocol

from rlexp.board.messages.address import parse_address, parse_queue_address
from rlexp.board.servers import open_board, open_queue
from rlexp.board.servers.board import Board, Carrier
from tests.brokers import RedisServer
from tests.doubles.memory_board import MemoryBoard, MemoryServer
from tests.queue_servers import QueueServer


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


class QueuePlace:
    """A queue that no other test uses, on a server beside the board."""

    def __init__(self, server: QueueServer) -> None:
        self._address = parse_queue_address(server.url)
        self._task_id = f"task-{secrets.token_hex(4)}"
        self._ends: list[Carrier] = []

    def end(self) -> Carrier:
        """Return another end of the queue."""
        self._ends.append(open_queue(self._address, self._task_id))
        return self._ends[-1]

    def close(self) -> None:
        for end in self._ends:
            end.close()
