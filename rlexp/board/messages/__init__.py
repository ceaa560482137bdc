"""What lies on a board and travels over it: addresses, keys, tasks, and the messages of fragments and weights."""
