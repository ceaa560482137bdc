"""The trainer's end of a board: announces a trial as a task, and stores its joined actors' fragments in replay."""
