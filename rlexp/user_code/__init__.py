"""Imports what experiments name of the user's own: modules, and classes as ``package.module:Class``."""
