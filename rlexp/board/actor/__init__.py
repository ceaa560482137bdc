"""An actor of a board: looks for a task, plays it, or trains one that was submitted."""
