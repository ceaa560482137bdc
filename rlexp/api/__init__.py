"""What ``import rlexp`` offers to programs and notebooks; each function imports what it needs when it is called."""
