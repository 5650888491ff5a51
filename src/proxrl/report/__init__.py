"""What runs have learned: curves, comparisons, published returns, and the page of `proxrl report` and `proxrl watch`."""

from proxrl.report.page import write_report

__all__ = ["write_report"]
