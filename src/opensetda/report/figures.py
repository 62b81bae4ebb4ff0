"""Figures of a run for a paper, as PNG; the page shows the same charts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from opensetda.errors import InputError
from opensetda.openness.report import AUDIT, ESTIMATE
from opensetda.report.content import AUDITED, SampleMap
from opensetda.report.matrices import draw_confusion
from opensetda.report.plane import CountingProgress, plane_of
from opensetda.report.plots import IntervalRow, draw_histograms, draw_intervals, draw_lines
from opensetda.report.run_parts import RunParts
from opensetda.report.scatter import ScatterPanel, draw_scatter
from opensetda.runs.figure_style import figure_bytes
from opensetda.runs.folder import RunFolder
from opensetda.system.files import check_writable, make_parents, new_file

FIGURES = ("map", "scores", "confusion", "openness", "curves")
DPI = 300
# Inches of a panel: scaled to the text width of a page, text of 9 points becomes 8.
_SIDE = 2.7


def write_figures(
    run: RunFolder, folder: Path, overwrite: bool = False, progress: CountingProgress | None = None
) -> list[Path]:
    """Write the figures that a run has data for, and return their paths.

    All are drawn before the first is written. `overwrite` replaces earlier figures, and removes
    those that this run has no data for; other files in the folder stay. `progress` is called with
    done and total while the map is made.
    """
    if folder.resolve() == run.path.resolve():
        raise InputError(f"--figures {folder}: the run folder itself; choose another folder")
    earlier = _earlier(folder)
    if earlier and not overwrite:
        raise InputError(
            f"--figures {folder}: {earlier[0].name} exists already; choose another folder or add "
            "--overwrite"
        )
    contents = {
        folder / f"{name}.png": figure_bytes(figure, dpi=DPI, crop=True)
        for name, figure in draw_figures(run, progress).items()
    }
    make_parents(folder / "figure")
    with ExitStack() as asides:
        for path, content in contents.items():
            asides.enter_context(new_file(path)).write_bytes(content)
    for path in earlier:
        if path not in contents:
            path.unlink()
    return list(contents)


def draw_figures(run: RunFolder, progress: CountingProgress | None = None) -> dict[str, Figure]:
    """Draw the figures that a run has data for, by name."""
    parts = RunParts(run)
    confusion, panels = parts.confusion(), parts.panels()
    drawn = (
        map_figure(parts.sample_map(plane_of(run, progress))),
        _scores(parts),
        None if confusion is None else draw_confusion(confusion),
        _openness(parts),
        draw_lines(panels, "", columns=2) if panels else None,
    )
    return {name: figure for name, figure in zip(FIGURES, drawn, strict=True) if figure is not None}


def map_figure(samples: SampleMap) -> Figure:
    """Draw the map by prediction and, if known, by true class; sources are hollow."""
    places, n_all = samples.places, samples.n_source + samples.n_target
    remark = f"{len(samples.names):,} of {n_all:,} samples" if samples.is_sampled else ""
    panels = [ScatterPanel("Prediction", places, remark)]
    if samples.truth is not None and samples.no_truth is None:
        panels.append(ScatterPanel("Truth", places, classes=samples.truth))
    return draw_scatter(panels, samples.labels, samples.is_target, samples.classes, "", _SIDE)


def _scores(parts: RunParts) -> Figure:
    panels = {"As labelled": parts.histogram()}
    if parts.truth is not None and (parts.truth != "").all():
        is_unknown = ~np.isin(parts.truth, parts.predictions.classes)
        panels["In truth"] = parts.histogram(is_unknown)
    return draw_histograms(panels)


def _openness(parts: RunParts) -> Figure:
    found, openness = parts.estimates["openness"], parts.openness()
    rows = [IntervalRow(openness.kind, openness.share, strong=True)]
    if openness.is_estimated:
        rows = [replace(rows[0], low=openness.low, high=openness.high)]
    for name, estimate in found["estimates"].items():
        if openness.is_estimated and name == (AUDIT if openness.kind == AUDITED else ESTIMATE):
            continue
        low, high = estimate["low"], estimate["high"]
        rows.append(IntervalRow(name, estimate["share"], *((low, high) if low < high else ())))
    confidence = 100 * found["confidence"]
    what = f"share of unknowns, % of targets, with intervals of {confidence:.0f} %"
    return draw_intervals(rows, what, openness.true)


def _earlier(folder: Path) -> list[Path]:
    """Return the figures that exist; raise an `InputError` if the folder cannot be written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--figures {folder}: a file, not a folder; choose another name")
    check_writable(folder / "figure")
    paths = [folder / f"{name}.png" for name in FIGURES]
    for path in paths:
        if path.is_dir():
            raise InputError(f"--figures {folder}: a folder {path.name} is in the way; move it")
    return [path for path in paths if path.exists() or path.is_symlink()]
