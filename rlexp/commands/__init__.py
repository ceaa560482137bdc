"""The commands: parse, call, print. What is heavy (torch, ray) is imported inside those that need it."""
