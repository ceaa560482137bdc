"""The keys that messages are signed with, derived from what both ends know."""

from __future__ import annotations

import hmac

_PURPOSE = b"rlexp message 1 "


def message_key(secret: str, task_id: str) -> bytes:
    """Return the key of a task's messages, 32 bytes, derived from the board's password.

    Without a password the key is known to everyone: then it finds damaged messages, not forged ones.
    """
    return hmac.digest(secret.encode(), _PURPOSE + task_id.encode(), "sha256")
