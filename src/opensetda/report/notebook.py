"""The report inline in a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.report.collect import collect
from opensetda.report.page import render_page
from opensetda.runs.predicting import open_run

# Scripts of the page run, but see nothing of the notebook around it.
_FRAME = (
    '<iframe sandbox="allow-scripts" title="{title}" width="100%" height="{height}" '
    'srcdoc="{page}" '
    'style="box-sizing: border-box; border: 1px solid #8884; border-radius: 6px"></iframe>'
)


@dataclass(frozen=True)
class ShownReport:
    """A report that a notebook shows; `page` is its HTML file, `str` gives the result in words."""

    title: str
    headline: str
    page: str = field(repr=False)
    height: int = field(repr=False)

    def _repr_html_(self) -> str:
        title, page = html.escape(self.title), html.escape(self.page)
        return _FRAME.format(title=title, page=page, height=self.height)

    def __str__(self) -> str:
        return self.headline


def show(run: Any, *, images: str | Path | None = None, height: int = 640) -> ShownReport:
    """Show the report of a run, with its map, in a notebook.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        A run folder, or what `opensetda.runs.fit` returned.
    images : str or Path, optional
        Folder of the images of a feature table, as in `osda report --images`.
    height : int
        Height of the frame in pixels.

    Returns
    -------
    ShownReport
        A notebook shows it if it is the last line of a cell.
    """
    if not isinstance(height, int) or height < 1:
        raise InputError(f"height={height!r}: give the height of the frame in pixels")
    try:
        folder = open_run(run)
    except TypeError:
        kind = type(run).__name__
        raise InputError(f"show: {kind} is no run; give what runs.fit returned") from None
    report = collect(folder, None if images is None else Path(images))
    return ShownReport(report.title, report.headline, render_page(report), height)
