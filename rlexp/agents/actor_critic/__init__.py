"""The policy of agents that learn a policy and a value function: it draws actions from distributions."""
