"""DQN with its extensions: double Q-learning, dueling heads, n-step returns, prioritized replay."""
