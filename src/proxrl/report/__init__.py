"""What runs have learned: curves, comparisons, published returns, and the page of `proxrl report` and `proxrl watch`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxrl.report.page import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """Import `write_report` on first use, so that the other modules can be imported without the page."""
    if name == "write_report":
        from proxrl.report.page import write_report

        return write_report
    raise AttributeError(f"module 'proxrl.report' has no attribute {name!r}")
