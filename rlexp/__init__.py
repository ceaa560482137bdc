"""rlexp: reinforcement-learning experiments in YAML, trained by Ape-X, DQN and PPO on Ray, PyTorch and Gymnasium."""

__version__ = "0.1.0"
