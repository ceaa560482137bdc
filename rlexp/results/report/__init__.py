"""The report of a comparison: one HTML file that needs nothing else, not even a script."""

from rlexp.results.report.page import report_page, write_report

__all__ = ["report_page", "write_report"]
