"""The report of a run: one HTML file to look at, or inline in a notebook."""

from __future__ import annotations

import html
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.report.collect import Progress
    from opensetda.runs.folder import RunFolder

# Scripts of the page run, but see nothing of the notebook around it.
_FRAME = (
    '<iframe sandbox="allow-scripts" title="{title}" width="100%" height="{height}" '
    'srcdoc="{page}" '
    'style="box-sizing: border-box; border: 1px solid #8884; border-radius: 6px"></iframe>'
)


def write_report(
    run: RunFolder,
    out: Path | None = None,
    images: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a run as one HTML file, by default into its folder; return the path."""
    from opensetda.report.collect import collect
    from opensetda.report.page import render_page
    from opensetda.runs.folder import REPORT
    from opensetda.runs.place import changing_run
    from opensetda.system.files import new_file

    page = render_page(collect(run, images, progress))
    with ExitStack() as stack:
        if out is None:
            if not os.access(run.path, os.W_OK | os.X_OK):
                advice = "name another file with --out"
                raise InputError(f"{run.path}: a report cannot be written into it; {advice}")
            # Not into the folder of another run that has taken its place.
            path = stack.enter_context(changing_run(run.path, run.stamp)) / REPORT
        else:
            path = out
        stack.enter_context(new_file(path)).write_text(page, encoding="utf-8")
    return path


@dataclass(frozen=True)
class ShownReport:
    """A report that a notebook shows; `page` is its HTML file, `str` gives the result in words."""

    title: str
    headline: str
    page: str = field(repr=False)
    height: int = field(repr=False)

    def _repr_html_(self) -> str:
        title = html.escape(self.title)
        page = html.escape(self.page)
        return _FRAME.format(title=title, page=page, height=self.height)

    def __str__(self) -> str:
        return self.headline


def show(run: Any, *, images: str | Path | None = None, height: int = 640) -> ShownReport:
    """Show the report of a run, with its map, in a notebook.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        A run folder, or what `opensetda.usecases.fit` returned.
    images : str or Path, optional
        Folder of the images of a feature table, as in `osda report --images`.
    height : int
        Height of the frame in pixels.

    Returns
    -------
    ShownReport
        A notebook shows it if it is the last line of a cell.
    """
    from opensetda.report.collect import collect
    from opensetda.report.page import render_page
    from opensetda.usecases.predict_samples import open_run

    report = collect(open_run(run), None if images is None else Path(images))
    return ShownReport(report.title, report.headline, render_page(report), height)
