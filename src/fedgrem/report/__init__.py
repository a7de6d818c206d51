"""What a fit found, in words and numbers."""

from fedgrem.report.summary import SiteSummary, Summary, html_summary, summarize, summary_text

__all__ = ["SiteSummary", "Summary", "html_summary", "summarize", "summary_text"]
