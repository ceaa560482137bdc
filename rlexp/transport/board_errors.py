"""The errors of boards and queues that a user can meet."""

from __future__ import annotations

from rlexp.errors import RlexpError


class BoardError(RlexpError):
    """A board, or its queue, that refuses what was asked of it: wrong password, no rights, no memory left."""


class BoardLostError(BoardError):
    """A board, or its queue, that cannot be reached now; the same call may succeed later."""
