"""The server of a board as a process of ours: the program that is installed, its configuration, passwords and end."""
