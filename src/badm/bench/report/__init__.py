"""Reports of a comparison: a page to look at, tables to paste, figures to print."""

from badm.bench.report.figures import draw_figures
from badm.bench.report.page import write_page
from badm.bench.report.text import console_table, markdown

__all__ = ["console_table", "draw_figures", "markdown", "write_page"]
