"""Figures of a run for a paper, as PDF and PNG."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from opensetda.errors import InputError
from opensetda.openness.tracker import AUDIT, ESTIMATE
from opensetda.report.content import AUDITED, EdgeMap, SampleMap
from opensetda.report.matrices import PairMap, draw_confusion, draw_maps
from opensetda.report.plane import CountingProgress, planes_of
from opensetda.report.plots import HistogramPanel, IntervalRow, draw_histograms, draw_intervals
from opensetda.report.run_parts import RunParts
from opensetda.report.scatter import ScatterPanel, draw_scatter
from opensetda.runs.curves import curve_figure
from opensetda.runs.evaluation import Evaluation
from opensetda.runs.figure_style import figure_bytes
from opensetda.runs.folder import RunFolder
from opensetda.system.files import check_writable, make_parents, new_file

FIGURES = ("curves", "map", "map-steps", "scores", "confusion", "edges", "openness")
FORMS = ("pdf", "png")
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
        folder / f"{name}.{form}": figure_bytes(figure, form, DPI, crop=True)
        for name, figure in draw_figures(run, progress).items()
        for form in FORMS
    }
    _write(folder, contents)
    for path in earlier:
        if path not in contents:
            path.unlink()
    return list(contents)


def draw_figures(run: RunFolder, progress: CountingProgress | None = None) -> dict[str, Figure]:
    """Draw the figures that a run has data for, by name."""
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
    return {name: figure for name, figure in zip(FIGURES, drawn, strict=True) if figure is not None}


def _curves(parts: RunParts) -> Figure | None:
    panels = parts.panels()
    steps = {step for panel in panels for line in panel.lines for step in line.values}
    if len(steps) < 2:
        return None
    kept = parts.estimates["kept_step"]
    return curve_figure(panels, max(steps), kept_step=None if kept is None else int(kept["step"]))


def map_figure(samples: SampleMap) -> Figure:
    """Draw the map at the kept step: by prediction, by domain and, if known, by true class."""
    places, labels = samples.places[samples.kept], samples.labels[samples.kept]
    n_all = samples.n_source + samples.n_target
    remark = f"{len(samples.names):,} of {n_all:,} samples" if samples.is_sampled else ""
    panels = [
        ScatterPanel("Prediction", places, remark),
        ScatterPanel("Domain", places, by_domain=True),
    ]
    if samples.truth is not None and samples.no_truth is None:
        panels.append(ScatterPanel("Truth", places, classes=samples.truth))
    return draw_scatter(panels, labels, samples.is_target, samples.classes, "", _SIDE)


def steps_figure(samples: SampleMap, evaluation: Evaluation | None = None) -> Figure | None:
    """Draw the map by prediction at the first, a middle and the kept step; None if that is one."""
    if samples.kept == 0:
        return None
    panels = []
    for place in dict.fromkeys([0, samples.kept // 2, samples.kept]):
        number = samples.steps[place]
        title = f"Step {number}" + (" (kept)" if place == samples.kept else "")
        found = None if evaluation is None else evaluation.steps.get(number)
        remark = f"HOS {100 * found.hos:.1f} %" if found and math.isfinite(found.hos) else ""
        panels.append(ScatterPanel(title, samples.places[place], remark, samples.labels[place]))
    labels = samples.labels[samples.kept]
    return draw_scatter(panels, labels, samples.is_target, samples.classes, "", _SIDE)


def _scores(parts: RunParts) -> Figure:
    panels = [HistogramPanel("As labelled", parts.histogram())]
    if parts.truth is not None and (parts.truth != "").all():
        is_unknown = ~np.isin(parts.truth, parts.predictions.classes)
        panels.append(HistogramPanel("In truth", parts.histogram(is_unknown)))
    return draw_histograms(panels)


def edge_figure(edges: EdgeMap) -> Figure:
    """Draw learned affinities beside the labels."""
    same = np.equal.outer(edges.labels, edges.labels)
    unknown = edges.labels == len(edges.names) - 1
    # Two unknowns may be of one class or of two.
    by_label = np.where(np.logical_and.outer(unknown, unknown), np.nan, same)
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
    labels = PairMap("Same label", by_label, 1.0, remark)
    learned = PairMap("Learned affinity", edges.affinity, 1.0, ", ".join(means))
    names = [edges.names[label] for label in there]
    return draw_maps(labels, [[learned]], sizes[there].tolist(), names, "", side=3.3)


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
    paths = [folder / f"{name}.{form}" for name in FIGURES for form in FORMS]
    for path in paths:
        if path.is_dir():
            raise InputError(f"--figures {folder}: a folder {path.name} is in the way; move it")
    return [path for path in paths if path.exists() or path.is_symlink()]


def _write(folder: Path, contents: dict[Path, bytes]) -> None:
    """Write all files, or none."""
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
