"""Tasks on a board: what a trainer says of its trial, and what an actor makes of that."""
