"""Calls in flight, and who made them: the one place where a plain object becomes a Ray actor.

Every concurrent thing of the package is a plain class. A pool *places* it (``RayTaskPool``: as an actor
in a separate process, or in the caller's; ``InlineTaskPool``: always in the caller's, for tests) and
calls its methods, which are named by the class's own function, so that a reader finds every caller:

    shard = pool.place("replay-0", resources, ReplayShard, config, seed)
    lane.submit(shard, ReplayShard.replay)

Values come back as ``Ref``: they may be in another process until ``get``, and a ``Ref`` given as an
argument travels by reference, not through the caller.
"""
