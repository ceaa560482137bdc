"""The board of a run's trials: what they are on it, its secrets, and what a trial reports there."""
