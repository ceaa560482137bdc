"""Reading what runs left: event files, comparisons, reports."""
