"""The trainer's end of a board: announces a trial as a task, and takes what its joined actors send into replay."""
