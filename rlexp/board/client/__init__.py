"""A trial that is trained elsewhere: it is put on a board as a task, followed there, and kept as a run here."""
