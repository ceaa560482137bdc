"""Checkpoints: directories of arrays and counters that appear whole or not at all, and cannot hold code.

A checkpoint is one safetensors file per group of arrays, ``state.json`` for everything that is not
an array, and ``manifest.json`` with the size and SHA-256 of each; the manifest is written last, the
directory gets its name after that. Agents write and read them; Tune only learns where they are.
"""
