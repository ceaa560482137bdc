"""All that is printed: displays while a run lasts, tables, plots; results to stdout, everything else to stderr."""
