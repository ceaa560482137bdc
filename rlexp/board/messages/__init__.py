"""Both ends of a board: actors that join from anywhere, and the source of samples that they are at the trainer."""
