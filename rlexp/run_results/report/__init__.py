"""The report of a comparison: one HTML file that needs no other file and no script, or a PNG of its curves."""

from rlexp.run_results.report.figure import write_picture
from rlexp.run_results.report.page import report_page, write_report

__all__ = ["report_page", "write_picture", "write_report"]
