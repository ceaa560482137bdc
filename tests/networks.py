"""Shapes of small networks for tests."""

from rlexp.models import HeadConfig

PLAIN_HEAD = HeadConfig(hiddens=(8,), dueling=True, noisy=False, sigma0=0.5, num_atoms=1, v_min=-10.0, v_max=10.0)
