"""The rollout workers, which step envs with a policy, and the sources that deliver their batches."""
