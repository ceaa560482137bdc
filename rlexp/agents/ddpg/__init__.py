"""DDPG, TD3 and Ape-X with DDPG: a policy of continuous actions, and critics that learn their values from replay."""
