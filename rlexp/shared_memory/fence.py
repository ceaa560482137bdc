"""The memory fence that readers and writers of shared memory put between content and the counter that speaks of it."""

from __future__ import annotations

import threading

_FENCE = threading.Lock()


def fence() -> None:
    """Let everything that this thread read and wrote before be done before anything that it reads or writes after.

    Between rows or weights and the counter that speaks of them. x86 needs none here, because it keeps the order of
    loads and that of stores; other machines do not. Python has no fence, but a lock's release waits for what came
    before, and what comes after waits for a lock's acquisition: hence one pair after the other, in this order.
    """
    with _FENCE:
        pass
    with _FENCE:
        pass
