"""Benchmarks: one program a question, each prints a table and asserts nothing; see docs/performance.md.

A regular package, since torchrl installs a folder of this name without an ``__init__.py``: this one is found first.
"""
