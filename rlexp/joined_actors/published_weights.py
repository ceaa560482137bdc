"""PublishedWeights: the versions of a task's weights that are on its board."""

from __future__ import annotations

from collections import deque
from typing import Final

from rlexp.joined_actors.board_link import BoardLink
from rlexp.joined_actors.weights_message import Newer, blob_name, seal_weights
from rlexp.transport.board import Lead

KEPT_VERSIONS: Final = 2
"""An actor may still read those before the newest ones."""


class PublishedWeights:
    """Owned by the thread that talks with the board."""

    def __init__(self, link: BoardLink) -> None:
        self.num_published = 0
        """Versions that were put there."""
        self.num_bytes = 0
        """Of the newest one."""
        self._link = link
        self._versions: deque[int] = deque()
        self._newest: Newer | None = None

    @property
    def version(self) -> int:
        """The newest one that is there; -1 before the first."""
        return self._versions[-1] if self._versions else -1

    def put(self, lead: Lead, newer: Newer) -> None:
        """Put ``newer`` there, and remove what is older than KEPT_VERSIONS."""
        self._newest = newer
        blob = seal_weights(self._link.task_id, lead.epoch, newer, self._link.keys)
        self._link.board.put_blob(lead, blob_name(newer.version), blob)
        if newer.version not in self._versions:
            self._versions.append(newer.version)
        if len(self._versions) > KEPT_VERSIONS:
            self._link.board.drop_blob(lead, blob_name(self._versions.popleft()))
        self.num_published += 1
        self.num_bytes = len(blob)

    def put_again(self, lead: Lead) -> None:
        """Put the newest ones there again: the board may have lost them."""
        if self._newest is not None:
            self.put(lead, self._newest)
