"""Processes and their shared parts: children, signals, the family of a session, locks, memory, threads."""
