"""Weights & Biases and MLflow, each in its own process beside the command, which never waits for it."""

from rlexp.trackers.trackers import Trackers

__all__ = ["Trackers"]
