"""The Ray in which things run: our own or a joined one, what its nodes have, and how its processes end."""
