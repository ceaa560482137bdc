"""R2D2: Q-learning with an LSTM, on sequences of replay (Kapturowski et al. 2019)."""
