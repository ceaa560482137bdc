"""Ape-X: DQN with many workers, sharded prioritized replay and one learner (Horgan et al. 2018)."""
