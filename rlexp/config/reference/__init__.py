"""What people and editors read about keys: ``explain``, the page of keys, the JSON Schema, hints."""
