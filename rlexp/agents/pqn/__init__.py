"""PQN (Gallici et al. 2024): Q(lambda) over many envs, on rows of the newest weights, without a target network."""
