"""Imports the user's own code that experiments name: modules, and classes as ``package.module:Class``."""
