"""Files of RLlib's releases in current spelling: names, values, layout, and the defaults of a file's age."""
