"""WeightsFeed: the newest weights on the board, for one joined actor."""

from __future__ import annotations

import threading

from rlexp.joined_actors.weights_message import Newer, Shapes, blob_name, check_form, open_weights
from rlexp.transport.board import Board
from rlexp.transport.credentials import ActorKeys
from rlexp.transport.envelope import InvalidMessageError


class WeightsFeed:
    """Fetched in the thread that talks with the board, taken in the one that plays."""

    def __init__(
        self, board: Board, task_id: str, keys: ActorKeys, max_bytes: int, shapes: Shapes | None = None
    ) -> None:
        """Refuse weights of more than ``max_bytes``, and others than those that the network of ``shapes`` has."""
        self.num_refused = 0
        self.refusal = ""
        """Why weights were refused last."""
        self._board, self._task_id, self._keys, self._max_bytes = board, task_id, keys, max_bytes
        self._shapes = shapes
        self._newest: Newer | None = None
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        """The version that was fetched last; -1 before the first one."""
        newest = self._newest
        return -1 if newest is None else newest.version

    def fetch(self, version: int) -> None:
        """Fetch ``version``, unless it is there; raises what the board raises. What is wrong is refused and counted."""
        if version in (-1, self.version):
            return
        blob = self._board.get_blob(self._task_id, blob_name(version))
        if blob is None:  # a newer one has replaced it
            return
        try:
            newest = open_weights(blob, self._task_id, version, self._keys, self._max_bytes)
            self._check(newest)
        except InvalidMessageError as error:
            self.num_refused += 1
            self.refusal = str(error)
            return
        with self._changed:
            self._newest = newest
            self._changed.notify_all()

    def newest(self, known: int | None) -> Newer | None:
        """Return the newest weights, None where ``known`` is their version or none are there; never blocks."""
        newest = self._newest
        return None if newest is None or newest.version == known else newest

    def wait(self, timeout: float) -> bool:
        """Return whether there are any weights, after ``timeout`` seconds at most."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest is not None, timeout)

    def _check(self, newest: Newer) -> None:
        """Raise InvalidMessageError for weights of another network, and for older ones that are shown again."""
        before = self._newest
        if before is not None and (newest.epoch, newest.version) <= (before.epoch, before.version):
            raise InvalidMessageError("weights that are older than those before")
        if self._shapes is not None:
            check_form(newest.weights, self._shapes)
