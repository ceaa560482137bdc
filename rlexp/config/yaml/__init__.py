"""YAML 1.2 to nodes that know their place in the file, within limits, and plain data back to YAML."""
