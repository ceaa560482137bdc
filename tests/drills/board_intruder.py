"""Who has a board's password and a join token, and means harm to a task: forges messages and weights."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import lz4.block
import numpy as np
import redis

from rlexp.board.messages import envelope
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.blobs import BlobHead
from rlexp.board.messages.credentials import ActorKeys, SharedKeys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import Newer, seal_fragment, seal_weights
from rlexp.board.messages.tokens import parse_token
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Seat
from rlexp.board.task import SeatSpecs, read_description
from rlexp.config.keys.user_code import UserModules
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import SampleBatch
from tests.drills.board_scene import BoardScene

MAX_BYTES = 4 << 20
BOMB_BYTES = 1 << 30


class Touch:
    """What runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return subprocess.call, (["touch", str(self._path)],)


class Eve:
    """Has the board's password, and a token of her own."""

    def __init__(self, board: BoardScene, token: str) -> None:
        self.server = redis.Redis.from_url(board.server.url)
        self.board = open_board(parse_address(board.server.url))
        self.task = board.task()
        self.keys = parse_token(token).keys(self.task)
        found = self.board.describe(self.task)
        assert found is not None
        self._specs = SeatSpecs(read_description(found), UserModules())
        seat = self.board.claim(self.task, "eve/host-1", 600.0)
        assert seat is not None
        self.seat: Seat = seat
        worker = RolloutWorker(self._specs.spec(seat))
        weights = {name: np.zeros(shape, np.float32) for name, shape in self._specs.weights_shapes.items()}
        worker.set_weights(0, weights)
        rows, self._info = worker.sample(0)
        worker.stop()
        assert isinstance(rows, SampleBatch)
        self.rows = rows
        self.weights = weights

    def sealed(self, number: int, rows: SampleBatch, keys: ActorKeys, **changes: str) -> bytes:
        """Return a fragment as it would be sent with ``keys``."""
        header = replace(Header(self.task, self.seat.index, self.seat.epoch, number, actor=keys.actor), **changes)  # type: ignore[arg-type]
        info: SampleInfo = self._info
        (message,) = seal_fragment(header, rows, info, keys.key, MAX_BYTES)
        return message

    def push(self, *messages: bytes) -> None:
        self.server.rpush(f"rlexp:{{{self.task}}}:in:0", *messages)

    def bomb(self) -> bytes:
        """Return a message, signed as it should be, that unpacks to more than it says."""
        said = envelope.read_message(self.sealed(0, self.rows, self.keys), self.keys.key, MAX_BYTES).header
        block = lz4.block.compress(bytes(BOMB_BYTES), store_size=False)[: 2 << 20]
        return envelope._sign(said, block, self.keys.key)

    def forge_weights(self) -> None:
        """Put weights there that no trainer has signed, as the newest."""
        newer = Newer(10**9, self.weights, None, 10**9)
        blob = seal_weights(self.task, 2**50, newer, SharedKeys(self.keys.published_key)) + bytes(64)
        key = f"rlexp:{{{self.task}}}:blob:weights-{newer.version}"
        self.server.hset(key, "head", BlobHead.of(blob).to_text())
        self.server.hset(key, "0", blob)
        self.server.hset(f"rlexp:{{{self.task}}}:task", "weights", newer.version)
