"""Ray Tune runs experiments: this is the only room that knows Tune."""
