"""PPO (Schulman et al. 2017): samples and learns in turn, from rows that its newest weights have sampled."""
