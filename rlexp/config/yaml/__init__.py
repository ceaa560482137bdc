"""YAML 1.2 to nodes with their places in the file, within limits, and plain data back to YAML."""
