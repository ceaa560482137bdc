"""Numbers about a run: they are gathered here and judged elsewhere."""
