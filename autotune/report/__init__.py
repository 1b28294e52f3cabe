"""Reports of one kernel on one device: an offline HTML page, and Markdown with one picture."""

from autotune.report.content import ProblemContent, ReportContent, content_of
from autotune.report.markdown import write_markdown
from autotune.report.page import write_html
from autotune.report.sources import from_rows, from_run, from_store

__all__ = [
    "ProblemContent",
    "ReportContent",
    "content_of",
    "from_rows",
    "from_run",
    "from_store",
    "write_html",
    "write_markdown",
]
