"""Runs on disk: the directory of a run, its record, its lock, and what its trials write."""
