"""Replay in memory that workers share with the learner's process: they write, it samples in place, without locks.

::

    worker 0 ──▶ ring 0 ┐                       ┌▶ sample
    worker 1 ──▶ ring 1 ├ a segment for a shard ┤
    worker 2 ──▶ ring 2 ┘                       └▶ update_priorities (a sum tree of the reader's own)

Beside it, only a few numbers are sent between the processes: which rows were written (``WrittenRows``).
"""

from rlexp.replay.shared.rows import RingSizes, SharedReplay

__all__ = ["RingSizes", "SharedReplay"]
