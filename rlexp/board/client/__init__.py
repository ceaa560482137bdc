"""A trial that is trained elsewhere: put on a board as a task, followed there, and stored as a run here."""
