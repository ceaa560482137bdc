"""Texts about keys for people and editors: ``explain``, the page of keys, the JSON Schema, hints."""
