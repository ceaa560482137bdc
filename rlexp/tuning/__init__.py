"""Experiments as Tune runs them, and what a run leaves on disk and shows while it runs."""
