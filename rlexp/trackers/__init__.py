"""Weights & Biases and MLflow, each in its own process beside the command, which never waits for it."""
