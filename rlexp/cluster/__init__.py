"""Where things run: a Ray of our own or one that is joined, what its nodes have, and how its processes end."""
