"""Who may send what: the keys with which both ends of a task sign, and by which each verifies what comes.

Without tokens both ends derive one key from the board's password, so everybody who has it can send anything. With a
*master key* (see :mod:`~rlexp.board.messages.tokens`) each actor has a key of its own, and what the trainer publishes
has a signature that only the trainer can make.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Protocol

from rlexp.board.messages.tasks import Task
from rlexp.files import plain

_MESSAGE: Final = b"rlexp message 1 "
SIGNATURE: Final = "signature"
"""What the description of a signed task has, in hexadecimal digits."""


class TrainerKeys(Protocol):
    """The trainer's end of one task."""

    @property
    def has_tokens(self) -> bool:
        """Whether each actor has a token; then those without one are refused."""
        ...

    @property
    def published_key(self) -> bytes:
        """Of messages that all actors read."""
        ...

    def key_of(self, actor: str) -> bytes | None:
        """Return the key of an actor's messages; None where nobody of this id may send any. Without tokens it is ''."""
        ...

    @property
    def num_signature_bytes(self) -> int:
        """Of its signatures: 0 without tokens."""
        ...

    def sign(self, statement: bytes) -> bytes:
        """Return the trainer's signature; empty without tokens."""
        ...

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        """Return whether a trainer with the same keys made the signature."""
        ...


class ActorKeys(Protocol):
    """An actor's end of one task."""

    @property
    def actor(self) -> str:
        """The id of its token; empty without one."""
        ...

    @property
    def key(self) -> bytes:
        """Of the messages that it sends."""
        ...

    @property
    def published_key(self) -> bytes:
        """Of messages that all actors read."""
        ...

    @property
    def num_signature_bytes(self) -> int:
        """Of a signature of the trainer: 0 without a token."""
        ...

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        """Return whether the trainer made the signature; without a token only an empty one is right."""
        ...


@dataclass(frozen=True)
class SharedKeys:
    """Both ends of a task without tokens: one key, derived from the board's password.

    Without a password the key is known to everyone: then it finds damaged messages, not forged ones.
    """

    key: bytes = field(repr=False)

    has_tokens = False
    actor = ""
    num_signature_bytes = 0

    @staticmethod
    def of(password: str, task_id: str) -> SharedKeys:
        """Return the keys of a task on a board with ``password``."""
        return SharedKeys(message_key(password.encode(), task_id))

    @property
    def published_key(self) -> bytes:
        return self.key

    def key_of(self, actor: str) -> bytes | None:
        return None if actor else self.key

    def sign(self, statement: bytes) -> bytes:
        return b""

    def accepts(self, statement: bytes, signature: bytes) -> bool:
        return not signature


def message_key(secret: bytes, task_id: str) -> bytes:
    """Return the key of messages of one task, 32 bytes, derived from ``secret``."""
    return hmac.digest(secret, _MESSAGE + task_id.encode(), "sha256")


def weights_statement(task_id: str, epoch: int, version: int, message: bytes) -> bytes:
    """Return what a trainer signs of its weights: which they are, and the hash of the ``message`` with them."""
    return f"rlexp weights 1\n{task_id}\n{epoch}\n{version}\n{sha256(message).hexdigest()}".encode()


def signed_task(task: Task, keys: TrainerKeys) -> Task:
    """Return ``task`` with its trainer's signature in the description; as it is without tokens."""
    task = replace(task, description=plain(task.description))
    signature = keys.sign(_task_statement(task))
    if not signature:
        return task
    return replace(task, description={**task.description, SIGNATURE: signature.hex()})


def task_signature(task: Task) -> bytes:
    """Return the signature of ``task``; empty where it has none, or what is none."""
    text = task.description.get(SIGNATURE)
    try:
        return bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


def accepts_task(task: Task, keys: ActorKeys) -> bool:
    """Return whether ``task`` is as its trainer announced it."""
    unsigned: Mapping[str, Any] = {name: value for name, value in task.description.items() if name != SIGNATURE}
    try:
        statement = _task_statement(replace(task, description=unsigned))
    except ValueError:  # NaN, which a trainer cannot have written
        return False
    return keys.accepts(statement, task_signature(task))


def _task_statement(task: Task) -> bytes:
    """Return the same text for equal tasks, whatever the order of their keys: boards keep a description as JSON."""
    content = [task.id, task.name, task.num_seats, task.description]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"rlexp task 1\n{sha256(text.encode()).hexdigest()}".encode()
