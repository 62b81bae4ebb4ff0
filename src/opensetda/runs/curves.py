"""The curves of a run as one picture: one panel per question, one line per quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.runs import figure_style as style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROUNDING, _LEAST_PERCENT = 1e-12, 1e-3


@dataclass(frozen=True)
class Line:
    """One quantity by step number."""

    name: str
    values: Mapping[int, float]
    color: str
    marker: str
    width: float = 1.6


@dataclass(frozen=True)
class Panel:
    """Lines over the steps."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    percent: bool = False
    level: float | None = None  # a true value, the same at all steps: a dashed line


def draw_curves(
    history: Sequence[Mapping[str, Any]],
    step_metrics: Mapping[int, OpenSetMetrics] | None = None,
    title: str = "",
    *,
    kept_step: int | None = None,
    true_share: float | None = None,
) -> bytes:
    """Draw the curves of a run as a PNG file; the same curves give the same bytes.

    Parameters
    ----------
    history : sequence of mappings
        One entry per step, the `history_` of a classifier; missing quantities are left out.
    step_metrics : mapping of OpenSetMetrics, optional
        The metrics by step number, if the truth is known.
    title : str
        Title of the figure.
    kept_step : int, optional
        The kept step, which is marked.
    true_share : float, optional
        The true share of unknowns, if the truth is known.
    """
    panels = curve_panels(history, step_metrics, true_share)
    n_steps = max([len(history), *(step_metrics or {})], default=1)
    columns = 2 if len(panels) == 4 else min(max(len(panels), 1), 3)
    width = 5.2 if columns < 3 else 4.4
    figure = curve_figure(panels, n_steps, title, kept_step, columns, (width, 3.4))
    return style.figure_bytes(figure)


def curve_figure(
    panels: Sequence[Panel],
    n_steps: int,
    title: str = "",
    kept_step: int | None = None,
    columns: int = 2,
    size: tuple[float, float] = (4.2, 2.6),
) -> Figure:
    """Draw panels of `size` inches, `columns` per row, for the steps 1 to `n_steps`."""
    rows = math.ceil(max(len(panels), 1) / columns)
    figure = style.new_figure(size[0] * columns, size[1] * rows + 0.5, title)
    grid = figure.add_gridspec(rows, columns)
    # The first panel fills the places that are left free.
    free = rows * columns - len(panels)
    for place, panel in enumerate(panels):
        row, column = divmod(place + free if place else 0, columns)
        cell = grid[row, column : column + 1 + (free if place == 0 else 0)]
        _draw_panel(figure.add_subplot(cell), panel, n_steps, kept_step)
    return figure


def curve_panels(
    history: Sequence[Mapping[str, Any]],
    step_metrics: Mapping[int, OpenSetMetrics] | None = None,
    true_share: float | None = None,
) -> list[Panel]:
    """Return the panels that a run has data for; parameters as for `draw_curves`."""
    return [
        *_truth_panels(step_metrics or {}),
        *_openness_panels(history, true_share),
        *_label_free_panels(history),
    ]


def _truth_panels(metrics: Mapping[int, OpenSetMetrics]) -> list[Panel]:
    lines = []
    for metric, (heading, color, marker, width) in style.METRIC_STYLE.items():
        values = _curve({step: getattr(found, metric) for step, found in metrics.items()}, 100)
        lines.append(Line(heading, values, color, marker, width))
    return _panel("How good: against the true labels", "%", lines, percent=True)


def _openness_panels(history: Sequence[Mapping[str, Any]], true_share: float | None) -> list[Panel]:
    used, own = (_quantity(history, name, 100) for name in ("openness", "openness_estimate"))
    # The thin line last, so that it is not hidden where both agree.
    lines = [Line("used", used, style.BLUE, "o", 2.0)]
    lines.append(Line("estimate", own, style.ORANGE, "s", 1.0))
    level = None if true_share is None else 100 * true_share
    return _panel("How open: share of unknowns", "% of targets", lines, percent=True, level=level)


def _label_free_panels(history: Sequence[Mapping[str, Any]]) -> list[Panel]:
    changed = _quantity(history, "changed", 100)
    names = ("mean_score", "threshold", "n_known", "n_unknown")
    scores, threshold, n_known, n_unknown = (_quantity(history, name) for name in names)
    losses: dict[str, dict[int, Any]] = {}
    for step, entry in enumerate(history, start=1):
        for name, value in (entry.get("loss") or {}).items():
            losses.setdefault(name, {})[step] = value
    settled = (Line("changed", changed, style.BLUE, "o"),)
    far = (Line("known", n_known, style.BLUE, "o"), Line("unknown", n_unknown, style.ORANGE, "s"))
    sure = (Line("mean", scores, style.GREEN, "o"), Line("threshold", threshold, style.ORANGE, "s"))
    looks = zip(cycle(style.CYCLE), cycle(style.MARKERS), strict=True)
    learned = [Line(name, _curve(losses[name]), *next(looks)) for name in losses]
    return [
        *_panel("How settled: labels that changed", "% of targets", settled, percent=True),
        *_panel("How far: pseudo-labels", "targets", far),
        *_panel("How sure: known score", "score", sure),
        *_panel("What it learns: training losses", "mean over the step", learned),
    ]


def _panel(
    title: str, unit: str, lines: Iterable[Line], percent: bool = False, level: float | None = None
) -> list[Panel]:
    """Return the panel, or nothing without data."""
    drawn = tuple(line for line in lines if line.values)
    return [Panel(title, unit, drawn, percent, level)] if drawn else []


def _draw_panel(axes: Axes, panel: Panel, n_steps: int, kept_step: int | None) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.level is not None:
        axes.axhline(panel.level, color=style.GREY, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
    for line in panel.lines:
        style.plot_line(axes, line.values, line.color, line.marker, line.width, kept_step)
    style.dress(axes, panel.title)
    axes.set_xlabel("step")
    if kept_step is not None:
        # Below the axis, where no curve crosses the text.
        axes.axvline(kept_step, color=style.LIGHT, linewidth=7, zorder=0.5)
        numbers = f"; numbers are at step {kept_step}" if kept_step < n_steps else ""
        axes.set_xlabel(f"step (kept: {kept_step}{numbers})")
    axes.set_ylabel(panel.unit)
    axes.set_xlim(0.6, n_steps + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=min(n_steps, 10), integer=True))
    if n_steps == 1:
        axes.set_xticks([1])
    if panel.percent:
        style.frame_percent(axes)
    lines = list(panel.lines)
    if panel.level is not None:
        lines.append(Line("true", {n_steps: panel.level}, style.GREY, ""))
    ends = []
    for line in lines:
        value = line.values.get(kept_step or 0, list(line.values.values())[-1])
        name = f"{line.name} " if len(lines) > 1 else ""
        ends.append((name + style.short_number(value), value, line.color, line.width > 2))
    style.label_ends(axes, ends)


def _quantity(
    history: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0
) -> dict[int, float]:
    return _curve({step: entry.get(name) for step, entry in enumerate(history, start=1)}, factor)


def _curve(values: Mapping[int, Any], factor: float = 1.0) -> dict[int, float]:
    """Leave out steps where the quantity is undefined, and set rounding errors to 0."""
    least = _ROUNDING if factor == 1 else _LEAST_PERCENT
    return {
        step: float(value) * factor if abs(value * factor) > least else 0.0
        for step, value in values.items()
        if value is not None and math.isfinite(value)
    }
