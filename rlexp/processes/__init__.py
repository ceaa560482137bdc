"""Processes and what they share: children, signals, the family of a session, locks, memory, threads."""
