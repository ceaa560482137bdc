"""BoardLink: what a trainer has of its board, from the process of its trial to the thread that uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rlexp.joined_actors.task_records import TaskRecords
from rlexp.transport.board import Board
from rlexp.transport.credentials import TrainerKeys

LEASE_SLACK_S: Final = 2.0
"""How much longer than a lease a trainer waits for that of one before that has ended."""


@dataclass(frozen=True)
class BoardLink:
    """A task's board, and by what it is known there."""

    board: Board
    """Owned by the thread that uses the link, which closes it."""
    task_id: str
    name: str
    member: str
    """Who trains it: unlike any other process's."""
    keys: TrainerKeys
    """By which the task's messages are verified, and what it publishes is signed."""
    epoch: int = 0
    """Of the right to train it, where ``member`` has it already."""
    file: str = ""
    """The experiment of a submitted task; the board may have lost it."""
    lead_wait_s: float = LEASE_SLACK_S
    """How much longer than a lease it waits for the right to train, which the trainer before may have."""
    records: TaskRecords = field(default_factory=TaskRecords)
