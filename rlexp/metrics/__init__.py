"""Numbers about a run: scores over seeds, recent episodes and times."""
