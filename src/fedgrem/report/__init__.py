"""What a fit found, in words and numbers."""

from fedgrem.report.summary import SiteSummary, Summary, summarize

__all__ = ["SiteSummary", "Summary", "summarize"]
