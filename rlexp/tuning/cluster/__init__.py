"""What a joined cluster adds to a run: its nodes, which of them are lost or taken away, and waiting for room."""
