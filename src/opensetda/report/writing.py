"""Write the report of a run."""

from __future__ import annotations

from pathlib import Path

from opensetda.report.collect import Progress, collect
from opensetda.report.page import render_page
from opensetda.runs.folder import REPORT, RunFolder
from opensetda.system.files import new_file


def write_report(
    run: RunFolder,
    out: Path | None = None,
    images: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a run as one HTML file, by default into its folder; return the path."""
    path = run.path / REPORT if out is None else out
    page = render_page(collect(run, images, progress))
    with new_file(path) as aside:
        aside.write_text(page, encoding="utf-8")
    return path
