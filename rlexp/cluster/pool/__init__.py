"""Task pools: the only place where a plain object becomes a Ray actor, and the calls in flight.

Every concurrent thing of the package is a plain class. A pool *places* it (``RayTaskPool``: as an actor in a separate
process, or in the caller's; ``InlineTaskPool``: always in the caller's, for tests) and calls its methods, which are
named by the class's own function, so that a search finds every caller:

    shard = pool.place("replay-0", resources, ReplayShard, config, seed)
    lane.submit(shard, ReplayShard.replay)

Values are returned as ``Ref``: they may be in another process until ``get``, and a ``Ref`` as an argument is sent by
reference, not through the caller.
"""
