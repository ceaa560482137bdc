"""The content of a board: addresses, keys, tasks, and the messages of fragments and weights."""
