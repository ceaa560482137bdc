"""Everything that is printed: displays of runs, tables, plots; results to stdout, everything else to stderr."""
