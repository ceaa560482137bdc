"""What commands print, apart from the displays of a run: results to stdout, everything else to stderr."""
