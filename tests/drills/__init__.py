"""Drills: something is broken on purpose, and what a user sees and keeps is checked.

    python -m tests.drills list
    python -m tests.drills run kill-rollout [ctrl-c ...]
    python -m tests.drills run --all [--long] [--twice]

Each drill is one function, has a temporary folder and a Ray of its own, a seed and a minute at most, but for
the long ones, which break the same thing again and again. It prints PASS or FAIL, its seconds and its
evidence. What is left of a drill's processes afterwards fails it.
"""
