"""Figures of a run for a paper: each as PDF, to be printed at any size, and as PNG."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opensetda.errors import InputError
from opensetda.openness.share_estimators import CONFIDENCE
from opensetda.report.bars import HistogramPanel, draw_histograms
from opensetda.report.content import EdgeMap, SampleMap
from opensetda.report.intervals import IntervalRow, draw_intervals
from opensetda.report.maps import PairMap, draw_maps
from opensetda.report.matrix import draw_confusion
from opensetda.report.plane import planes_of
from opensetda.report.run_parts import RunParts
from opensetda.report.scatter import ScatterPanel, draw_scatter
from opensetda.runs.curves import curve_figure
from opensetda.runs.evaluation import Evaluation
from opensetda.runs.figure_style import figure_bytes
from opensetda.runs.folder import RunFolder
from opensetda.system.files import check_writable, make_parents, new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("curves", "map", "map-steps", "scores", "confusion", "edges", "openness")
FORMS = ("pdf", "png")
DPI = 300
# Inches of a panel. Three of them are a little wider than a page's text: words of 9 points are
# still 8 when the figure is brought to that width.
_SIDE = 2.7


def write_figures(
    run: RunFolder,
    folder: Path,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write the figures that a run can fill, and return their paths.

    All are drawn before the first is written. With `overwrite`, earlier ones are replaced, and
    those that this run cannot fill are removed: they would show another run. Other
    files in the folder stay.

    Parameters
    ----------
    run : RunFolder
        A complete run.
    folder : Path
        Is made if need be.
    overwrite : bool
        Whether earlier figures may be replaced.
    progress : callable, optional
        Told how far the map is, if it has to be made.
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
        folder / f"{name}.{form}": figure_bytes(figure, form, DPI, crop=True)
        for name, figure in draw_figures(run, progress).items()
        for form in FORMS
    }
    _write(folder, contents)
    for path in earlier:
        if path not in contents:
            path.unlink()
    return list(contents)


def draw_figures(
    run: RunFolder, progress: Callable[[int, int], None] | None = None
) -> dict[str, Figure]:
    """Draw the figures that a run can fill, by name; `progress` is told how far the map is."""
    parts = RunParts(run)
    samples, confusion, edges = None, parts.confusion(), parts.edges()
    if parts.view is not None:
        samples = parts.sample_map(parts.view, planes_of(run, progress))
    drawn = (
        _curves(parts),
        None if samples is None else map_figure(samples),
        None if samples is None else steps_figure(samples, parts.evaluation),
        _scores(parts),
        None if confusion is None else draw_confusion(confusion),
        None if edges is None else edge_figure(edges),
        _openness(parts),
    )
    both = zip(FIGURES, drawn, strict=True)
    return {name: figure for name, figure in both if figure is not None}


def _curves(parts: RunParts) -> Figure | None:
    panels = parts.panels()
    steps = {step for panel in panels for line in panel.lines for step in line.values}
    # One step is no curve.
    if len(steps) < 2:
        return None
    kept = parts.estimates["kept_step"]
    return curve_figure(panels, max(steps), kept_step=None if kept is None else int(kept["step"]))


def map_figure(samples: SampleMap) -> Figure:
    """Draw the map at the kept step: by prediction, by domain and, if it is known, by truth."""
    places, labels = samples.places[samples.kept], samples.labels[samples.kept]
    n_all = samples.n_source + samples.n_target
    remark = f"{len(samples.names):,} of {n_all:,} samples" if samples.is_sampled else ""
    panels = [
        ScatterPanel("Prediction", places, remark),
        ScatterPanel("Domain", places, by_domain=True),
    ]
    if samples.truth is not None:
        panels.append(ScatterPanel("Truth", places, classes=samples.truth))
    return draw_scatter(panels, labels, samples.is_target, samples.classes, "", _SIDE)


def steps_figure(samples: SampleMap, evaluation: Evaluation | None = None) -> Figure | None:
    """Draw the map by prediction at the first step, half way, and at the kept step.

    None if the first one was kept.
    """
    if samples.kept == 0:
        return None
    panels = []
    for place in dict.fromkeys([0, samples.kept // 2, samples.kept]):
        number = samples.steps[place]
        title = f"Step {number}" + (" (kept)" if place == samples.kept else "")
        hos = math.nan
        if evaluation is not None and number in evaluation.steps:
            hos = evaluation.steps[number].hos
        remark = f"HOS {100 * hos:.1f} %" if math.isfinite(hos) else ""
        panels.append(ScatterPanel(title, samples.places[place], remark, samples.labels[place]))
    labels = samples.labels[samples.kept]
    return draw_scatter(panels, labels, samples.is_target, samples.classes, "", _SIDE)


def _scores(parts: RunParts) -> Figure:
    panels = [HistogramPanel("As labelled", parts.histogram())]
    if parts.truth is not None:
        is_unknown = ~np.isin(parts.truth, parts.predictions.classes)
        panels.append(HistogramPanel("In truth", parts.histogram(is_unknown)))
    return draw_histograms(panels)


def edge_figure(edges: EdgeMap) -> Figure:
    """Draw what the network links beside what the labels say."""
    same = np.equal.outer(edges.labels, edges.labels)
    unknown = edges.labels == len(edges.names) - 1
    by_label = same.astype(np.float64)
    # Two unknowns may be of one class or of two.
    by_label[np.ix_(unknown, unknown)] = np.nan
    sizes = np.bincount(edges.labels, minlength=len(edges.names))
    there = np.flatnonzero(sizes).tolist()
    order = "of each class the source first"
    remark = f"{order}; grey: two unknowns" if unknown.any() else order
    pairs = np.logical_and.outer(~unknown, ~unknown) & ~np.eye(len(same), dtype=bool)
    means = [
        f"{name} known class {edges.affinity[chosen].mean():.2f}"
        for name, chosen in (("same", pairs & same), ("other", pairs & ~same))
        if chosen.any()
    ]
    return draw_maps(
        PairMap("Same label", by_label, 1.0, remark),
        [[PairMap("Learned affinity", edges.affinity, 1.0, ", ".join(means))]],
        sizes[there].tolist(),
        [edges.names[label] for label in there],
        "",
        side=3.3,
    )


def _openness(parts: RunParts) -> Figure:
    found, openness = parts.estimates["openness"], parts.openness()
    if openness.told:
        rows = [IntervalRow("told", openness.share, strong=True)]
    else:
        rows = [IntervalRow("used", openness.share, openness.low, openness.high, strong=True)]
    for name, estimate in found.get("estimates", {}).items():
        share, low, high = (float(estimate[key]) for key in ("share", "low", "high"))
        rows.append(IntervalRow(name, share, low, high))
    confidence = 100 * float(found.get("confidence", CONFIDENCE))
    what = f"share of unknowns, % of targets, with intervals of {confidence:.0f} %"
    return draw_intervals(rows, what, openness.true)


def _earlier(folder: Path) -> list[Path]:
    """Return the figures that are there; refuse a folder that could not be written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--figures {folder}: a file, not a folder; choose another name")
    check_writable(folder / "figure")
    paths = [folder / f"{name}.{form}" for name in FIGURES for form in FORMS]
    for path in paths:
        if path.is_dir():
            raise InputError(f"--figures {folder}: a folder {path.name} is in the way; move it")
    return [path for path in paths if path.exists() or path.is_symlink()]


def _write(folder: Path, contents: dict[Path, bytes]) -> None:
    """Write all files aside, and move them when all are there."""
    made = make_parents(folder / "figure")
    try:
        with ExitStack() as asides:
            for path, content in contents.items():
                asides.enter_context(new_file(path)).write_bytes(content)
    except BaseException:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()
        raise
