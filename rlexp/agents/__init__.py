"""What is learned: the agents, which assemble workers, replay, optimizer and learner into an algorithm."""
