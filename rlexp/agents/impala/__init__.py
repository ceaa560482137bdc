"""IMPALA: workers never wait, and the learner corrects for how old their policy is by V-trace."""
