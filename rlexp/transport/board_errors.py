"""The errors of boards and queues that a user can meet."""

from __future__ import annotations

from rlexp.errors import RlexpError


class BoardError(RlexpError):
    """A board, or its queue, that refuses what was asked of it: wrong password, no rights, no memory left."""


class BoardLostError(BoardError):
    """A board, or its queue, that cannot be reached now; the same call may succeed later."""


class BannedError(BoardError):
    """The trainer of a task has banned this actor."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"the trainer of task {task_id} has banned this actor for invalid fragments, or refuses its token",
            "its newest results say why, under info/board; check that both ends have the same versions",
        )
