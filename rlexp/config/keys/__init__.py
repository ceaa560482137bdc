"""The keys of experiment files as pydantic models, with their types, defaults and meaning."""
