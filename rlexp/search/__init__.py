"""The decisions of a sweep while it runs: its next configurations, which trials end early, and their ranking."""
