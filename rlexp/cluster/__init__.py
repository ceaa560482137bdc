"""A Ray of our own for one command: how it starts, what is watched, and how all of its processes end."""
