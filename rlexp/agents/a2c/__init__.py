"""A2C, A3C and PG: one gradient step of the policy for each train batch."""
