"""Reading the files of runs: event files, comparisons, reports."""
