"""Experiments as Ray Tune runs them: the only room that knows Tune."""
