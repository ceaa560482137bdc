"""Who plays: workers that step envs with a policy, and the sources through which their batches arrive."""
