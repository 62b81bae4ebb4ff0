"""The report of a run: one HTML file to look at."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opensetda.report.page import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """Import `write_report` only when it is used: it needs heavy libraries."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from opensetda.report.page import write_report

    return write_report
