"""PPO (Schulman et al. 2017): samples with its newest weights and learns, in turn."""
