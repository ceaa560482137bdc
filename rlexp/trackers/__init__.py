"""Weights & Biases and MLflow: each in a process of its own beside the command, which never waits for it."""

from rlexp.trackers.trackers import Trackers

__all__ = ["Trackers"]
