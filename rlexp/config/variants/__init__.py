"""The variants of an experiment: the points of its grid or search space, each validated."""
