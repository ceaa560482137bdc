"""What people and editors read about keys: ``explain``, docs/keys.md, the JSON Schema, hints."""
