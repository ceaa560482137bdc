"""Files of RLlib's releases in today's spelling: names, values, layout, and the defaults of a file's age."""
