"""Blobs with the trainer's signature: checkpoints, for other trainers of the task and for its client."""

from __future__ import annotations

from hashlib import sha256

from rlexp.transport.credentials import ActorKeys, TrainerKeys
from rlexp.transport.envelope import InvalidMessageError


def signed(content: bytes, task_id: str, name: str, keys: TrainerKeys) -> bytes:
    """Return the blob ``name`` of a task with ``content``; without tokens they are the same."""
    return content + keys.sign(_statement(content, task_id, name))


def verified(blob: bytes, task_id: str, name: str, keys: ActorKeys | TrainerKeys) -> bytes:
    """Return the content of a blob; raises InvalidMessageError where the trainer of ``keys`` has not made it."""
    end = len(blob) - keys.num_signature_bytes
    content = blob[: max(end, 0)]
    if end < 0 or not keys.accepts(_statement(content, task_id, name), blob[end:]):
        raise InvalidMessageError(f"the blob {name} is not signed by the task's trainer")
    return content


def _statement(content: bytes, task_id: str, name: str) -> bytes:
    return f"rlexp blob 1\n{task_id}\n{name}\n{sha256(content).hexdigest()}".encode()
